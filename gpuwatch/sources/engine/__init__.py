"""One engine over HTTP: its metrics page, parsed and mapped to our names, and what it says about itself."""
