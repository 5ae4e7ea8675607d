"""Series that compare one moment with another: evictions, stalls, memory peaks."""
