"""Questions asked of a program; nothing here changes IR."""
