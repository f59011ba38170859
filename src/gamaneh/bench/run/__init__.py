"""`gamaneh bench`: plain against speculative decoding, alternated, in this process or over HTTP."""
