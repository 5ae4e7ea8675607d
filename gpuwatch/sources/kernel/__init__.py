"""The log of the Linux kernel: Xid errors and other words of the NVIDIA driver, and processes killed for memory."""
