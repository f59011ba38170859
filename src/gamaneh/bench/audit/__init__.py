"""Does speculative decoding change what a target writes? Checks with evidence, themselves tested by planted faults."""
