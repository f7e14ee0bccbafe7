"""What fills the terminal: the chat, and the screens opened over it."""
