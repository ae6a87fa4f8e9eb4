"""Recomputation: compiled programs that compute values again instead of keeping them.

| question | file |
|---|---|
| Which instructions may be computed again, and what does it cost? | candidates.py |
| Which of them are worth it in a schedule? | greedy.py |
| Which plan does a program get, in which order? | plan.py |
| What does a loop keep of every trip for another loop? | loops.py |
| Which of that is computed again there, and how? | residuals.py |
| How is the module changed? | rewrite.py; edit.py: single edits of its message |
"""
