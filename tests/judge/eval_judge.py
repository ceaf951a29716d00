"""Judges `gradtile eval`: transformers computes the same figures from exported weights, in float64.

usage: eval_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --torch calls it)

A small model with a BPE tokenizer is trained and exported. Its perplexity with a stride, its bits per byte, the losses of all choices of
multiple-choice questions and the two accuracies must agree.
"""
import json
import math
import random
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gradtile_runs import run

CONTEXT = 32
# gradtile computes in float32: a loss of a token has an error of some hundred roundings of 6e-8.
BOUND = 2e-5


def token_losses(model, ids):
    """-ln p of each token but the first."""
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0]
    return -torch.log_softmax(logits, -1)[torch.arange(len(ids) - 1), ids[1:]]


def strided_losses(model, ids, stride):
    """The losses of all tokens but the first. A window predicts the tokens that no earlier window has predicted."""
    losses, end = [], 1
    for begin in range(0, len(ids), stride):
        window = ids[begin : begin + CONTEXT + 1]
        losses.append(token_losses(model, window)[end - begin - 1 :])
        end = begin + len(window)
        if end == len(ids):
            return torch.cat(losses)


def questions_of(text, count):
    """Contexts and four endings from other places of the text; some contexts are longer than the model's, some end with a blank."""
    random.seed(1)
    words = text.split()

    def some(least, most):
        begin = random.randrange(len(words) - most)
        return " ".join(words[begin : begin + random.randint(least, most)])

    questions = []
    for number in range(count):
        question = {"ctx": some(1, 40) + (" " if number % 7 == 0 else ""), "endings": [some(1, 9) for _ in range(4)]}
        question["label"] = str(number % 4) if number % 2 else number % 4
        questions.append(question)
    return questions


def encode_pair(encode, context, continuation):
    """As lm-evaluation-harness does (lm_eval/api/model.py, TemplateLM._encode_pair, for causal models)."""
    spaces = len(context) - len(context.rstrip())
    if spaces > 0:
        continuation = context[-spaces:] + continuation
        context = context[:-spaces]
    ids = encode(context)
    return ids, encode(context + continuation)[len(ids):]


def choice_losses(model, encode, question):
    """The sum of -ln p and the number of tokens of each choice."""
    losses = []
    for choice in question["endings"]:
        context, ending = encode_pair(encode, question["ctx"], choice if question["ctx"].endswith(" ") else " " + choice)
        context = context[-(CONTEXT + 1 - len(ending)) :]
        losses.append((float(token_losses(model, context + ending)[-len(ending) :].sum()), len(ending)))
    return losses


def main(gradtile, directory):
    text, tokenizer, out, exported = directory / "text.txt", directory / "tokenizer.json", directory / "run", directory / "exported"
    run(gradtile, "corpus", "--characters", "60000", "--out", text)
    run(gradtile, "tokenizer", "train", "--data", text, "--vocabulary", "400", "--out", tokenizer)
    run(gradtile, "train", "--data", text, "--tokenizer", tokenizer, "--layers", "2", "--width", "48", "--heads", "4", "--context", CONTEXT,
        "--batch", "8", "--steps", "200", "--device", "cpu", "--quiet", "--out", out)
    run(gradtile, "export", out, "--format", "safetensors", "--out", exported)
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float64).eval()
    exported_tokenizer = AutoTokenizer.from_pretrained(exported)

    def encode(part):
        return exported_tokenizer.encode(part, add_special_tokens=False)

    failed = False

    def judge(name, said, judged):
        nonlocal failed
        difference = abs(said / judged - 1)
        ok = difference <= BOUND
        failed |= not ok
        print(f"{name}: gradtile {said:.9f}, transformers {judged:.9f}, relative difference {difference:.1e}{'' if ok else f' IS BEYOND {BOUND}'}")

    part = directory / "part.txt"
    part.write_text(text.read_text()[:4000])
    ids = encode(part.read_text())
    first_token_bytes = len(exported_tokenizer.decode(ids[:1]).encode())
    for stride in (CONTEXT, 12, 1):
        losses = strided_losses(model, ids, stride)
        said = json.loads(run(gradtile, "eval", out, "--data", part, "--stride", stride, "--device", "cpu", "--json"))
        assert said["targets"] == len(losses) == len(ids) - 1
        judge(f"perplexity, stride {stride}", said["perplexity"], float(losses.mean().exp()))
        judge("  bits per byte", said["bits_per_byte"], float(losses.sum()) / math.log(2) / (len(part.read_bytes()) - first_token_bytes))

    questions = questions_of(text.read_text(), 60)
    task = directory / "task.jsonl"
    task.write_text("".join(json.dumps(question) + "\n" for question in questions))
    said = json.loads(run(gradtile, "eval", out, "--task", task, "--device", "cpu", "--json"))
    right = right_by_sum = worst = 0
    for question, answer in zip(questions, said["answers"], strict=True):
        losses = choice_losses(model, encode, question)
        assert answer["tokens"] == [count for _, count in losses]
        worst = max([worst] + [abs(ours / theirs - 1) for ours, (theirs, _) in zip(answer["sums"], losses, strict=True)])
        label = int(question["label"])
        right += min(range(4), key=lambda i: losses[i][0] / losses[i][1]) == label
        right_by_sum += min(range(4), key=lambda i: losses[i][0]) == label
    failed |= worst > BOUND
    print(f"losses of {4 * len(questions)} choices: the largest relative difference is {worst:.1e}{'' if worst <= BOUND else f' IS BEYOND {BOUND}'}")
    judge("accuracy by mean loss", said["accuracy"], right / len(questions))
    judge("accuracy by sum", said["accuracy_by_sum"], right_by_sum / len(questions))
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
