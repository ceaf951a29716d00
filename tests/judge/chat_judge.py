"""Judges chat templates: transformers' apply_chat_template must give the same tokens for the same conversations.

usage: chat_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --torch calls it)

The templates are written here in Jinja, as ChatML's and Llama 3's models have them. `gradtile eval --logits` shows the tokens that the program
makes of a file of conversations.
"""
import json
import random
import sys
from pathlib import Path

from safetensors import safe_open
from transformers import PreTrainedTokenizerFast

from gradtile_runs import run

TEMPLATES = {
    "chatml": (["<|im_start|>", "<|im_end|>"],
               "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"),
    "llama3": (["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
               "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
               "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"),
}
CONTEXT = 4096


def conversations():
    """Words, digits, emoji and white space. Messages do not begin with a line break, which GPT-2's split would join with the header's."""
    random.seed(2)
    pieces = ["Hello", " world", " 42", "\n", "\n\n", "  ", "é", "日本", "👋", "it's", "...", "\tTab", " <|endoftext|>", "<|im_sta"]

    def message():
        return random.choice(["Hi", " two", "7", "", "日"]) + "".join(random.choices(pieces, k=random.randint(0, 12)))

    for number in range(12):
        turns = [{"role": "system", "content": message()}] if number % 3 == 0 else []
        for _ in range(random.randint(1, 3)):
            turns += [{"role": "user", "content": message()}, {"role": "assistant", "content": "a" + message()}]
        yield turns


def main(gradtile, directory):
    text, data = directory / "text.txt", directory / "talk.jsonl"
    run(gradtile, "corpus", "--characters", "20000", "--out", text)
    talks = list(conversations())
    data.write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in talks))
    failed = False
    for name, (special, template) in TEMPLATES.items():
        tokenizer, out, tokens = directory / f"{name}.json", directory / name, directory / f"{name}.safetensors"
        run(gradtile, "tokenizer", "train", "--data", text, "--vocabulary", "320", "--out", tokenizer, "--special-tokens", *special)
        # There is no --chat-template: the program chooses the template by the tokenizer's special tokens.
        run(gradtile, "train", "--data", data, "--val-data", data, "--tokenizer", tokenizer, "--layers", "1", "--width", "8", "--heads", "1",
            "--context", CONTEXT, "--batch", "1", "--steps", "1", "--device", "cpu", "--quiet", "--out", out)
        run(gradtile, "eval", out, "--data", data, "--device", "cpu", "--logits", tokens)
        with safe_open(tokens, "np") as file:
            ours = file.get_tensor("tokens").tolist()
        judge = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), chat_template=template)
        theirs = [token for turns in talks for token in judge.apply_chat_template(turns, tokenize=True, return_dict=False)]
        ok = ours == theirs[:CONTEXT] and json.loads((out / "config.json").read_text())["chat-template"] == name
        failed |= not ok
        print(f"{name}: {len(ours)} tokens of {len(talks)} conversations{'' if ok else ' DIFFER'}")
        if not ok:
            place = next((i for i, pair in enumerate(zip(ours, theirs)) if pair[0] != pair[1]), min(len(ours), len(theirs)))
            print(f"  at {place}: {judge.convert_ids_to_tokens(ours[place - 5 : place + 5])}, {judge.convert_ids_to_tokens(theirs[place - 5 : place + 5])}")
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
