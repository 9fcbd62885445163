"""Link two files, and find out how good the links are. Everything here is for the steward, not for publication."""
