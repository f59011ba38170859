"""How the heads that come with the package were made, from the first prompt on."""
