"""`unbroken bench peers`: Unbroken beside other systems on the same events, when a process of each is killed."""
