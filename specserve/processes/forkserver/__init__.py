"""A process that has imported what nodes need, and forks them: they start without the imports.

`handle` is the supervisor's side, `__main__` the process, `messages` what they say to each other
and what `ps` shows. Why it is safe to fork here: docs/decisions/0026.
"""
