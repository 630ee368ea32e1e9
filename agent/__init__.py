"""The program that runs on a provider's GPU machine. It shares no code with the platform, only the REST contract."""

__version__ = "0.1.0"
KERNEL_VERSION = "1"  # of the benchmark kernels; the platform keeps expected values per version
