"""Answers in a form under speculation: valid, equal in every mode, and what the grammar costs."""
