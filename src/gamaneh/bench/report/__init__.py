"""Reports: runs of the benchmark as one page of HTML."""
