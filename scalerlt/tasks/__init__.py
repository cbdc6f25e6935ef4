"""Problems, prompts and graders; no torch.

Formats and their public sources:

- **GSM8K** (Cobbe et al., arXiv 2110.14168; github.com/openai/grade-school-math): JSON lines with the strings
  `question` and `answer`. An answer is worked steps, one a line, with calculator annotations `<<16-3-4=9>>`; its last
  line is `#### ` and the final number, at most with thousands separators. `gsm8k` reads it, `arithmetic` generates it.
- **Prompts** follow EleutherAI's lm-evaluation-harness (`gsm8k.yaml`, version 3): `Question: …`, newline, `Answer:`,
  worked examples before it separated by a blank line.
- **Grades** are two, as in lm-evaluation-harness: strict (the number at the `####` marker) and flexible (else the boxed
  or the last number). The rules differ from its regular expressions on purpose; `grader` states them.
- **Random tokens** are fixed work without text, as the `random` data set of `vllm bench`; **random rollouts** are
  that for a learner step.
"""
