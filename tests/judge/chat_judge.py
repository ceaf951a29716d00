"""Judges chat templates: transformers' apply_chat_template must give the same tokens for the same conversations, and `generate` must end answers
where `gradtile chat` ends them.

usage: chat_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --torch calls it)

The templates are written here in Jinja, as ChatML's and Llama 3's models have them. `gradtile eval --logits` shows the tokens that the program
makes of a file of conversations. A model that learned one conversation by heart is exported; transformers reads the folder as it reads any other.
"""
import json
import random
import subprocess
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from gradtile_runs import run

TEMPLATES = {
    "chatml": (["<|im_start|>", "<|im_end|>"],
               "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"),
    "llama3": (["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
               "{{ '<|begin_of_text|>' }}{% for m in messages %}{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' + "
               "m['content'] | trim + '<|eot_id|>' }}{% endfor %}"),
}
# As TEMPLATES, for the template without special tokens; and what each template writes before an answer.
PLAIN = "{% for m in messages %}{{ '\\n' + {'system': 'System', 'user': 'User', 'assistant': 'Assistant'}[m['role']] + ': ' + m['content'] }}{% endfor %}"
BEFORE_ANSWER = {"plain": "\nAssistant:", "chatml": "<|im_start|>assistant\n", "llama3": "<|start_header_id|>assistant<|end_header_id|>\n\n"}
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


def judge_answers(gradtile, directory, name, special, template, text):
    """A model that knows one answer by heart, in the program and, exported, in transformers."""
    data, tokenizer, out, exported = (directory / f"{name}_answers{end}" for end in (".jsonl", ".json", "", "_exported"))
    question, answer = "the quick fox", "jumps over the dog"
    data.write_text(60 * (json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}) + "\n"))
    run(gradtile, "tokenizer", "train", "--data", text, "--vocabulary", "320", "--out", tokenizer, "--special-tokens", "<|endoftext|>", *special)
    run(gradtile, "train", "--data", data, "--tokenizer", tokenizer, "--layers", "2", "--width", "32", "--heads", "2", "--context", "64", "--batch", "4",
        "--steps", "150", "--warmup", "0", "--lr", "1e-2", "--eval-every", "0", "--device", "cpu", "--quiet", "--chat-template", name, "--out", out)
    run(gradtile, "export", out, "--out", exported)
    ours = subprocess.run([str(gradtile), "chat", str(out), "--temperature", "0", "--device", "cpu"], input=question + "\n", capture_output=True, text=True,
                          check=True).stdout.rstrip("\n")
    tokens, model = AutoTokenizer.from_pretrained(exported), AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32)
    messages = [{"role": "user", "content": question}]
    prompt = tokens.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    independent = PreTrainedTokenizerFast(tokenizer_file=str(tokenizer), chat_template=template, bos_token="<|begin_of_text|>" if name == "llama3" else None)
    wrong = []
    if prompt != independent.apply_chat_template(messages, tokenize=False) + BEFORE_ANSWER[name]:
        wrong.append(f"the exported template writes {prompt!r}")
    ids = tokens.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)["input_ids"]
    # `generate` needs the tokenizer for stop strings only.
    generated = model.generate(ids, max_new_tokens=24, do_sample=False, **({"tokenizer": tokens} if name == "plain" else {}))[0][ids.shape[1]:]
    theirs = tokens.decode(generated, skip_special_tokens=True)
    stops = model.generation_config.stop_strings or []
    for stop in stops:
        theirs = theirs.split(stop)[0]
    if theirs.removeprefix(" ") != ours or ours != answer or len(generated) == 24:
        wrong.append(f"transformers generates {tokens.decode(generated)!r}, the program {ours!r}")
    print(f"{name}: an answer of {len(generated)} tokens{'; ' + '; '.join(wrong) if wrong else ' ends at the same place'}")
    return bool(wrong)


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
    for name, (special, template) in {**TEMPLATES, "plain": ([], PLAIN)}.items():
        failed |= judge_answers(gradtile, directory, name, special, template, text)
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
