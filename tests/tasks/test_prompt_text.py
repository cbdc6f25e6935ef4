import hashlib
import subprocess
import sys

import pytest

from scalerlt.errors import UserError
from scalerlt.tasks.problem import Problem
from scalerlt.tasks.prompt import Prompt, prompt_digest

EXAMPLES = (Problem("a", "3 + 4?", "<<3+4=7>>7\n#### 7"), Problem("b", "{question}?", "#### 5"))


def test_default_is_the_prompt_of_lm_evaluation_harness():
    assert Prompt().render("How many?") == "Question: How many?\nAnswer:"
    assert Prompt(examples=EXAMPLES[:1]).render("How many?") == (
        "Question: 3 + 4?\nAnswer: <<3+4=7>>7\n#### 7\n\nQuestion: How many?\nAnswer:"
    )


def test_braces_elsewhere_are_text():
    prompt = Prompt("{question} End with \\boxed{}, {like} this.", EXAMPLES)
    assert prompt.render("{0} {question}") == (
        "3 + 4? End with \\boxed{}, {like} this. <<3+4=7>>7\n#### 7\n\n"
        "{question}? End with \\boxed{}, {like} this. #### 5\n\n"
        "{0} {question} End with \\boxed{}, {like} this."
    )


@pytest.mark.parametrize("template", ["", "Question:", "{question} {question}", "{questions}"])
def test_a_template_holds_the_question_once(template):
    with pytest.raises(UserError, match="it must once"):
        Prompt(template)


def test_digest_follows_the_text_alone():
    renamed = (Problem("c", EXAMPLES[0].question, EXAMPLES[0].answer), EXAMPLES[1])
    assert prompt_digest(Prompt(examples=EXAMPLES)) == prompt_digest(Prompt(examples=renamed))
    different = [
        Prompt(),
        Prompt("Question: {question}\nAnswer: "),
        Prompt(examples=EXAMPLES),
        Prompt(examples=EXAMPLES[:1]),
        Prompt(examples=EXAMPLES[::-1]),
    ]
    assert len({prompt_digest(prompt) for prompt in different}) == len(different)
    assert prompt_digest(Prompt()) == hashlib.sha256(b"Question: {question}\nAnswer:").hexdigest()


def test_tasks_import_no_torch():
    modules = "arithmetic, counter_random, grader, gsm8k, number, problem, prompt, random_rollouts, random_tokens"
    program = (
        f"import sys; from scalerlt.tasks import {modules}; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
