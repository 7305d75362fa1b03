"""Everything tiny-chat has ever read. All of it is written for this project, and put together by a seeded generator."""
