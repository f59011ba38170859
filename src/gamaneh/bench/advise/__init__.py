"""The advisor: measures this machine with these prompts, predicts, holds the prediction against a real run, judges."""
