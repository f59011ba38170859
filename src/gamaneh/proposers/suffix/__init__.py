"""What followed the longest known end of a text: in this request, and in earlier answers."""
