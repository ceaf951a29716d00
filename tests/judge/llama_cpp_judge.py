"""Judges exported GGUF files: llama.cpp must load them, tokenize as the program does, compute its logits and its greedy text, and end the answers
of chats where the program does.

usage: llama_cpp_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --llama-cpp calls it)

A tokenizer and a small model of every family are trained by the program, and exported in float32, bfloat16 and float16. Tokenizers of every kind
that GGUF holds, those of SentencePiece among them, are exported with a small Llama.
llama.cpp keeps keys and values in float32 here. Its products with 16-bit weights also round the activations, and its GELU reads a table of
float16; BOUNDS says what that allows.
"""
import json
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import llama_cpp
import numpy as np
from safetensors import safe_open

from gradtile_runs import run

CONTEXT = 256  # llama.cpp rounds smaller ones up
VOCABULARY = 400
LLAMA = ["--preset", "llama-tiny", "--layers", "2"]
GEMMA = [*LLAMA, "--block", "sandwich-norm", "--activation", "geglu-tanh", "--norm-offset", "--scaled-embedding", "--tied-head", "--window", "24"]
MODELS = {
    "llama": LLAMA,
    "llama, llama3's frequencies": [*LLAMA, "--rope-scaling", "llama3", "--rope-factor", "8", "--rope-original-context", "64"],
    "llama, linear": [*LLAMA, "--rope-scaling", "linear", "--rope-factor", "3"],
    "llama, yarn": [*LLAMA, "--rope-scaling", "yarn", "--rope-factor", "4", "--rope-original-context", "64"],
    "qwen2": [*LLAMA, "--qkv-bias"],
    "qwen3": [*LLAMA, "--qk-norm", "--head-width", "48"],
    "smollm3": [*LLAMA, "--layers", "4", "--rope-pattern", "4"],
    "olmo2": [*LLAMA, "--block", "output-norm", "--qk-norm", "--qk-norm-kind", "projection", "--no-tied-head"],
    "gemma2": [*GEMMA, "--window-pattern", "2", "--softcap", "50", "--logit-softcap", "30"],
    "gemma3": [*GEMMA, "--window-pattern", "2", "--qk-norm", "--head-width", "48", "--window-rope-base", "1000"],
    "gptneox": [*LLAMA, "--block", "parallel", "--norm", "layer", "--activation", "gelu-tanh", "--bias", "--kv-heads", "0", "--rotary-width", "8"],
    "phi3": [*LLAMA, "--rotary-width", "8", "--rope-scaling", "longrope", "--rope-factor", "2", "--rope-original-context", "64",
             "--rope-short-factors", "1,1,1.5,2", "--rope-long-factors", "1,2,4,8"],
    "gpt2": ["--preset", "shakespeare-char-cpu", "--layers", "2", "--bias", "--activation", "gelu-tanh"],
}
# The largest difference of a logit, relative to the largest logit. Float32: as in weights_judge.py; GELU's
# table rounds arguments and values to 11 bits, 2^-12 each and at most twice that after the cancellation in a
# sum, in two layers: 2e-3. 16 bits: weights and activations of some ten products in a row are rounded by 2^-9
# (bfloat16) or 2^-12 (float16); if all errors add up, 20 x 2^-9 = 4e-2 and 20 x 2^-12 = 5e-3.
BOUNDS = {"f32": 1e-5, "f16": 5e-3, "bf16": 4e-2}
GELU_BOUND = 2e-3  # of float32
WITH_GELU = {"gpt2", "gptneox", "gemma2", "gemma3"}

def byte_level(split=None, digits=False, nfc=False):
    """A change of a tokenizer.json: how text is cut and normalized."""
    def change(tokenizer):
        steps = [{"type": "Digits", "individual_digits": True}] if digits else []
        if split:
            steps.append({"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": False})
        steps.append({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": split is None})
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        tokenizer["normalizer"] = {"type": "NFC"} if nfc else None
    return change


REFERENCES = Path(__file__).resolve().parents[1] / "reference" / "tokenizers"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# A file, or how a trained tokenizer.json changes. llama.cpp leaves out NFC, puts a blank before texts that begin with one, which Mistral's files do
# not, and puts one after user-defined symbols ("ab" in the model of SentencePiece); `gradtile export` says so, and the texts are without that.
TOKENIZERS = {
    "Pythia": byte_level(nfc=True),
    "SmolLM2": byte_level(digits=True),
    "OLMo 2": byte_level(QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|")),
    "Qwen2": byte_level(QWEN2, nfc=True),
    "Llama 2": REFERENCES / "sentencepiece" / "llama2.json",
    "Mistral": REFERENCES / "sentencepiece" / "mistral.json",
    "Gemma": REFERENCES / "sentencepiece" / "gemma.json",
    "SentencePiece, BPE": REFERENCES / "sentencepiece" / "bpe_identity.model",
    "SentencePiece, Unigram": REFERENCES / "sentencepiece" / "unigram_rules.model",
}
# Texts that these pieces make are hard to cut; none is a special token.
PIECES = ["", " ", "  ", "    ", "\n", "\n\n", "\t", "\r\n", "a", "the", " the", "12345", "1", "'s", "'LL", "...", "!!!!!!!!", "naïve", "東京", "한국어", "Привет", "🦊", "👩\u200d💻",
          "\u2581", "\u2581\u2581", "x_y(z)", "\u3000", "\u00a0", "\ufeff", "<", "0x41>", "ﬁ", "ＡＢ", "½", "İ"]

# The special tokens of chat templates.
CHATS = {
    "chatml": ["<|im_start|>", "<|im_end|>"],
    "llama3": ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
}

TEXTS = [
    "One day the fox met a bear.\nThey talked.\n\n",
    "  spaces   and\ttabs \n\n\n 1234567 3.14159 don't we'll THEY'RE",
    "naïve café — “quotes” … 東京 한국어 Привет 🦊👨‍👩‍👧 e\u0301",
    "def f(x):\n    return {'a': [x**2, -1]}  # comment\r\n",
]


class Model:
    """A GGUF file in llama.cpp."""

    def __init__(self, path):
        self.llama = llama_cpp.Llama(str(path), n_ctx=CONTEXT, n_batch=CONTEXT, n_threads=2, n_threads_batch=2, logits_all=True, type_k=0, type_v=0,
                                     flash_attn=False, use_mmap=False, verbose=False)

    def tokens(self, text):
        return self.llama.tokenize(text.encode(), add_bos=False, special=False)

    def text(self, tokens):
        return b"".join(self.llama.detokenize([token]) for token in tokens)

    def logits(self, tokens):
        """Of every token, computed in one pass: [T, V]."""
        self.llama.reset()
        self.llama.eval([int(token) for token in tokens])
        return self.llama.scores[: len(tokens)].copy()

    def greedy(self, prompt, count):
        """Token by token with llama.cpp's cache. Also returns the smallest distance between the two best logits, of the largest logit."""
        self.llama.reset()
        tokens, fed, closest = list(prompt), list(prompt), np.inf
        for _ in range(count):
            self.llama.eval(fed)
            row = self.llama.scores[self.llama.n_tokens - 1]
            second, first = np.sort(row)[-2:]
            closest = min(closest, float((first - second) / np.abs(row).max()))
            fed = [int(row.argmax())]
            tokens += fed
        return tokens[len(prompt):], closest


def program_tokens(gradtile, directory, tokenizer, text):
    (directory / "text.txt").write_bytes(text.encode())
    (directory / "text.bin").unlink(missing_ok=True)
    run(gradtile, "tokenize", directory / "text.txt", "--tokenizer", tokenizer, "--format", "nanogpt", "--out", directory / "text.bin")
    return np.fromfile(directory / "text.bin", "<u2")


def program_logits(gradtile, model, data, out):
    out.unlink(missing_ok=True)
    run(gradtile, "eval", model, "--data", data, "--device", "cpu", "--logits", out)
    with safe_open(out, "np") as file:
        return file.get_tensor("tokens"), file.get_tensor("logits")


def judge(gradtile, directory, name, flags, stories, tokenizer):
    trained = directory / name.replace(" ", "_")
    run(gradtile, "train", *flags, "--context", CONTEXT, "--data", stories, "--tokenizer", tokenizer, "--steps", "20", "--warmup", "2", "--lr", "3e-3",
        "--batch", "2", "--micro-batch", "2", "--device", "cpu", "--out", trained)
    data = directory / "stories.bin"
    if not data.exists():
        run(gradtile, "tokenize", stories, "--tokenizer", tokenizer, "--format", "nanogpt", "--out", data)
    tokens, expected = program_logits(gradtile, trained, data, directory / f"{trained.name}.safetensors")
    prompt = "One day"
    failed = False
    for dtype in ("f32", "bf16", "f16"):
        file = directory / f"{trained.name}-{dtype}.gguf"
        run(gradtile, "export", trained, "--format", "gguf", "--dtype", dtype, "--out", file)
        model = Model(file)
        wrong = []
        for text in TEXTS:
            ours, theirs = program_tokens(gradtile, directory, tokenizer, text), model.tokens(text)
            if list(ours) != theirs:
                wrong.append(f"{text!r} has the tokens {list(ours)}, in llama.cpp {theirs}")
            if model.text(theirs) != text.encode():
                wrong.append(f"{text!r} is not what its tokens decode to")
        difference = float(np.abs(model.logits(tokens) - expected).max() / np.abs(expected).max())
        bound = GELU_BOUND if dtype == "f32" and name in WITH_GELU else BOUNDS[dtype]
        if not difference <= bound:
            wrong.append(f"the bound is {bound}")
        said = f"logits differ by {difference:.1e}"
        if dtype == "f32":
            ids = model.tokens(prompt)
            greedy, closest = model.greedy(ids, CONTEXT - len(ids))
            text = run(gradtile, "sample", trained, "--prompt", prompt, "--temperature", "0", "--tokens", len(greedy), "--device", "cpu")
            same = text.encode().startswith(prompt.encode() + model.text(greedy))
            said += f", the greedy text is {'the same' if same else 'another'} (two best logits {closest:.1e} apart)"
            if not same and closest > 2 * difference:
                wrong.append(f"greedy text {text!r}, in llama.cpp {prompt + model.text(greedy).decode(errors='replace')!r}")
        print(f"{name}, {dtype}: {said}{'; ' + '; '.join(wrong) if wrong else ''}")
        failed |= bool(wrong)
    return failed


def judge_tokenizer(gradtile, directory, name, kind, stories, trained_tokenizer):
    """The ids of texts, and the greedy text of a small model."""
    place = directory / f"tokenizer of {name}".replace(" ", "_").replace(",", "")
    tokenizer, file = kind, place.with_suffix(".gguf")
    if not isinstance(kind, Path):
        tokenizer, content = place.with_suffix(".json"), json.loads(trained_tokenizer.read_text())
        kind(content)
        tokenizer.write_text(json.dumps(content))
    run(gradtile, "train", *LLAMA, "--context", CONTEXT, "--data", stories, "--tokenizer", tokenizer, "--steps", "10", "--warmup", "2", "--lr", "3e-3",
        "--batch", "2", "--micro-batch", "2", "--eval-every", "0", "--device", "cpu", "--quiet", "--out", place)
    run(gradtile, "export", place, "--format", "gguf", "--dtype", "f32", "--out", file)
    model, wrong, chosen, count = Model(file), [], random.Random(5), 0
    texts = TEXTS + ["".join(chosen.choices(PIECES, k=60)) for _ in range(20)]
    if name in ("Pythia", "Qwen2"):
        texts = [unicodedata.normalize("NFC", text) for text in texts]
    if name == "Mistral":
        texts = [text.lstrip(" \u2581") for text in texts]
    if name == "SentencePiece, BPE":
        texts = [text.replace("ab", "") for text in texts]
    for text in texts:
        ours, theirs = program_tokens(gradtile, directory, tokenizer, text), model.tokens(text)
        count += len(ours)
        if list(ours) != theirs:
            at = next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
            wrong.append(f"{text!r} differs at token {at}: {list(ours[at:at + 8])}, in llama.cpp {theirs[at:at + 8]}")
    prompt = "One day"
    greedy, closest = model.greedy(model.llama.tokenize(prompt.encode(), add_bos=True, special=False), 40)
    said = run(gradtile, "sample", place, "--prompt", prompt, "--temperature", "0", "--tokens", 40, "--device", "cpu", "--ignore-eos").removesuffix("\n")
    if said.encode() != prompt.encode() + model.text(greedy) and closest > 2e-5:
        wrong.append(f"greedy text {said!r}, in llama.cpp {prompt + model.text(greedy).decode(errors='replace')!r}")
    print(f"tokenizer of {name}: {count} ids of {len(texts)} texts{'; ' + '; '.join(wrong[:3]) if wrong else ', 0 differences; the same greedy text'}")
    return bool(wrong)


def judge_chat(gradtile, directory, name, special, stories):
    """A model that knows one answer by heart: llama.cpp's chat reads template and end tokens from the file."""
    data, tokenizer, out, file = (directory / f"chat_{name}{end}" for end in (".jsonl", ".json", "", ".gguf"))
    question, answer = "the quick fox", "jumps over the dog"
    data.write_text(60 * (json.dumps({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}) + "\n"))
    run(gradtile, "tokenizer", "train", "--data", stories, "--vocabulary", VOCABULARY, "--out", tokenizer, "--special-tokens", "<|endoftext|>", *special)
    run(gradtile, "train", "--layers", "2", "--width", "32", "--heads", "2", "--context", CONTEXT, "--data", data, "--tokenizer", tokenizer,
        "--chat-template", name, "--steps", "150", "--warmup", "0", "--lr", "1e-2", "--batch", "4", "--eval-every", "0", "--device", "cpu", "--quiet", "--out", out)
    run(gradtile, "export", out, "--format", "gguf", "--dtype", "f32", "--out", file)
    ours = subprocess.run([str(gradtile), "chat", str(out), "--temperature", "0", "--device", "cpu"], input=question + "\n", capture_output=True, text=True,
                          check=True).stdout.rstrip("\n")
    reply = Model(file).llama.create_chat_completion([{"role": "user", "content": question}], temperature=0, max_tokens=24)["choices"][0]
    ok = reply["message"]["content"] == ours == answer and reply["finish_reason"] == "stop"
    print(f"chat, {name}: {ours!r}, in llama.cpp {reply['message']['content']!r}, which ends by {reply['finish_reason']}{'' if ok else ' DIFFERS'}")
    return not ok


def main(gradtile, directory):
    print(f"llama-cpp-python {llama_cpp.__version__}")
    stories, tokenizer = directory / "stories.txt", directory / "tokenizer.json"
    run(gradtile, "corpus", "--characters", "100000", "--out", stories)
    run(gradtile, "tokenizer", "train", "--data", stories, "--vocabulary", VOCABULARY, "--out", tokenizer)
    failed = [judge(gradtile, directory, name, flags, stories, tokenizer) for name, flags in MODELS.items()]
    failed += [judge_tokenizer(gradtile, directory, name, kind, stories, tokenizer) for name, kind in TOKENIZERS.items()]
    failed += [judge_chat(gradtile, directory, name, special, stories) for name, special in CHATS.items()]
    return any(failed)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2])))
