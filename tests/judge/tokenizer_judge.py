"""Judges BPE tokenizers: the ids of `gradtile tokenize` must equal those of the tokenizers and tiktoken libraries on random text.

usage: tokenizer_judge.py GRADTILE DIRECTORY [CHARACTERS [FILE]...]    (scripts/judge.sh calls it)

CHARACTERS of random text are compared, and the texts of the files. Vocabularies are trained here, on this repository's text and on random
text: none is downloaded. The random characters are those that the
Unicode version of Python's unicodedata assigns; PCRE2 10.42, Debian 12's and Ubuntu 24.04's, has 14.0. A later Python assigns characters
that PCRE2 does not know, so they are left out.
"""
import base64
import json
import random
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

REPOSITORY = Path(__file__).resolve().parents[2]
GPT2 = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"""
CL100K = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s""")
LLAMA3 = (r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
O200K = "|".join((r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
                  r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?""",
                  r"""\p{N}{1,3}""", r""" ?[^\s\p{L}\p{N}]+[\r\n/]*""", r"""\s*[\r\n]+""", r"""\s+(?!\S)""", r"""\s+"""))
NANOCHAT = (r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+""")

# Characters of Unicode 15.0 and later that were not assigned in 14.0, by blocks that are new or grew at the end.
LATER_THAN_14 = [(0x1AFF, 0x1AFF), (0x10EC0, 0x10EFF), (0x11240, 0x1124F), (0x11B00, 0x11BFF), (0x11F00, 0x11F5F), (0x1343F, 0x1345F),
                 (0x1B132, 0x1B132), (0x1B155, 0x1B155), (0x1D2C0, 0x1D2DF), (0x1DF25, 0x1DF2A), (0x1E030, 0x1E08F), (0x1E4D0, 0x1E4FF),
                 (0x1F6DC, 0x1F6DC), (0x1F774, 0x1F77F), (0x1F7D9, 0x1F7D9), (0x1FA75, 0x1FA77), (0x1FA87, 0x1FA88), (0x1FAAD, 0x1FAAF),
                 (0x1FABB, 0x1FABF), (0x1FACE, 0x1FACF), (0x1FADA, 0x1FADB), (0x1FAE8, 0x1FAE8), (0x1FAF7, 0x1FAF8), (0x2EBF0, 0x2EE5F),
                 (0x31350, 0x323AF), (0x2FFC, 0x2FFF), (0x31EF, 0x31EF), (0xECE, 0xECE), (0xCF3, 0xCF3)]


def assigned_characters():
    later = {c for first, last in LATER_THAN_14 for c in range(first, last + 1)} if unicodedata.unidata_version != "14.0.0" else set()
    return [chr(c) for c in range(0x110000) if c not in later and unicodedata.category(chr(c)) not in ("Cn", "Cs")]


class RandomText:
    """Blocks of text of many kinds; every block may follow every other."""

    SPACES = [chr(c) for c in (*range(9, 14), 0x1C, 0x1D, 0x1E, 0x1F, 0x20, 0x85, 0xA0, 0x1680, 0x180E, *range(0x2000, 0x200E), 0x2028, 0x2029, 0x202F,
                               0x205F, 0x2060, 0x3000, 0xFEFF)]

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.characters = assigned_characters()
        self.numbers = [c for c in self.characters if unicodedata.category(c)[0] == "N"]
        self.marks = [c for c in self.characters if unicodedata.category(c)[0] == "M"]
        self.sources = [path.read_text() for pattern in ("core/**/*.cpp", "train/**/*.h", "docs/*.md", "scripts/*.sh", "tests/judge/*.py")
                        for path in sorted(REPOSITORY.glob(pattern))]

    def several(self, choices, most):
        return "".join(self.random.choices(choices, k=self.random.randint(1, most)))

    def emoji(self):
        person = self.random.choice("👩👨🧑👧")
        return self.random.choice([person + "\U0001F3FD\u200D💻", "👩\u200D👩\u200D👧", "🇩🇪🇯🇵", "1️⃣", "❤️", "🏳️\u200D🌈"]) + self.several(
            [chr(c) for c in range(0x1F600, 0x1F650)], 4)

    def source(self):
        text = self.random.choice(self.sources)
        start = self.random.randrange(len(text))
        return text[start:start + self.random.randint(1, 300)]

    def contraction(self):
        word = self.several("abcXYZäßж", 6)
        ending = self.random.choice(["s", "t", "re", "ve", "m", "ll", "d", "S", "T", "RE", "Ve", "lL", "D", "ſ", "x"])
        return word + self.random.choice(["'", "’", " '"]) + ending + self.random.choice(["", " ", "z"])

    def block(self):
        pick = self.random.random()
        if pick < 0.35:
            return self.several(self.characters, 20)
        if pick < 0.50:
            return self.source()
        if pick < 0.62:
            return self.several(self.random.choice([self.SPACES, " \n", "\r\n", " "]), 12)
        if pick < 0.68:
            return self.emoji()
        if pick < 0.76:
            return self.several([chr(c) for c in (*range(0x4E00, 0x9FA6, 7), *range(0x3041, 0x3097), *range(0xAC00, 0xD7A4, 11))], 30)
        if pick < 0.82:
            return self.several(self.numbers + list("0123456789") * 40, 12)
        if pick < 0.90:
            return self.contraction()
        if pick < 0.94:
            return self.several("aeiou" + "".join(self.random.choices(self.marks, k=4)), 10)
        if pick < 0.97:
            return self.several(["<|endoftext|>", "<|", "|>", "<|endof", "text|>", "<|endoftext|><|endoftext|>"], 3)
        return self.random.choice(["a", "!", "\0", "\x7f", "ab", "==", "中"]) * self.random.randint(1, 120)

    def document(self, characters):
        blocks, length = [], 0
        while length < characters:
            blocks.append(self.block())
            length += len(blocks[-1])
        return "".join(blocks)


def trained(split, size, texts, special, byte_level=False):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if byte_level else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(split), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def bytes_of_characters():
    """GPT-2's table, from characters to bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(b): b for b in kept}
    table.update({chr(256 + n): b for n, b in enumerate(b for b in range(256) if b not in kept)})
    return table


def documents(text, arguments):
    """Random documents, and those that the files of the command line are cut into."""
    characters = int(arguments[0]) if arguments else 400_000
    chosen = [text.document(20_000) for _ in range(max(characters // 20_000, 1))]
    for file in arguments[1:]:
        whole = Path(file).read_bytes().decode()
        chosen += [whole[start:start + 20_000] for start in range(0, len(whole), 20_000)]
    print(f"{sum(len(document.encode()) for document in chosen)} bytes in {len(chosen)} documents")
    return chosen


class Judge:
    def __init__(self, gradtile, directory, documents):
        self.gradtile, self.directory, self.documents = gradtile, directory, documents
        self.files = []
        for number, document in enumerate(documents):
            path = directory / f"document_{number:05}.txt"
            path.write_bytes(document.encode())
            self.files.append(path)
        self.full_text = directory / "whole.txt"
        self.full_text.write_bytes("".join(documents).encode())
        self.failures = 0

    def ids(self, tokenizer, files, *flags):
        out = self.directory / "tokens.bin"
        command = [self.gradtile, "tokenize", *files, "--tokenizer", tokenizer, "--format", "nanogpt", "--out", out, *flags]
        finished = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        if finished.returncode != 0:
            raise SystemExit(f"gradtile tokenize ended with {finished.returncode}: {finished.stderr}")
        return np.fromfile(out, np.uint16)

    def compare(self, name, tokenizer, encode, decode):
        expected = [encode(document) for document in self.documents]
        self.require_equal(name + ", documents", self.ids(tokenizer, self.files), np.concatenate(expected), decode)
        self.require_equal(name + ", one text", self.ids(tokenizer, [self.full_text]), np.asarray(encode("".join(self.documents))), decode)

    def require_equal(self, name, actual, expected, decode):
        if len(actual) == len(expected) and (actual == expected).all():
            print(f"{name}: {len(actual)} ids, 0 differences")
            return
        shortest = min(len(actual), len(expected))
        different = np.flatnonzero(actual[:shortest] != expected[:shortest])
        position = different[0] if len(different) else shortest
        part = slice(max(position - 3, 0), position + 8)
        print(f"{name}: {len(actual)} and {len(expected)} ids, different at {position}:\n  gradtile {decode(actual[part].tolist())!r} {actual[part]}\n"
              f"  judge    {decode(expected[part].tolist())!r} {expected[part]}")
        self.failures += 1


def judge_tokenizers(judge, name, tokenizer):
    path = judge.directory / f"{name}.json"
    tokenizer.encode_special_tokens = True  # plain text is the default of `gradtile tokenize`
    tokenizer.save(str(path))
    judge.compare(f"tokenizers, {name}", path, lambda text: np.asarray(tokenizer.encode(text, add_special_tokens=False).ids, np.int64),
                  tokenizer.decode)
    return path


def judge_tiktoken(judge, name, pattern, tokenizer):
    table = bytes_of_characters()
    ranks = {bytes(table[c] for c in token): id for token, id in tokenizer.get_vocab().items()}
    path = judge.directory / f"{name}.tiktoken"
    path.write_text("".join(f"{base64.b64encode(token).decode()} {id}\n" for token, id in sorted(ranks.items(), key=lambda item: item[1])))
    encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    judge.compare(f"tiktoken, {name}", path, lambda text: np.asarray(encoding.encode_ordinary(text), np.int64), encoding.decode)


def judge_other_spellings(judge, path, tokenizer):
    """Merges as pairs, and GPT-2's two files, must be the same tokenizer."""
    reference = judge.ids(path, judge.files)
    value = json.loads(path.read_text())
    for name, spelling in (("pairs", lambda pair: pair), ("words", " ".join)):
        other = json.loads(json.dumps(value))
        other["model"]["merges"] = [spelling(merge.split(" ") if isinstance(merge, str) else merge) for merge in value["model"]["merges"]]
        spelled = judge.directory / f"{name}.json"
        spelled.write_text(json.dumps(other))
        judge.require_equal(f"merges as {name}", judge.ids(spelled, judge.files), reference, tokenizer.decode)
    pair = judge.directory / "pair"
    pair.mkdir()
    tokenizer.model.save(str(pair))
    (pair / "vocab.json").rename(pair / "encoder.json")
    (pair / "merges.txt").rename(pair / "vocab.bpe")
    for file in ("encoder.json", "vocab.bpe"):
        judge.require_equal(file, judge.ids(pair / file, judge.files), reference, tokenizer.decode)


def judge_trainer(judge, size, files, special):
    """Vocabulary and merges, ties included, of the same texts."""
    out = judge.directory / "trained.json"
    subprocess.run([judge.gradtile, "tokenizer", "train", "--data", *files, "--vocabulary", str(size), "--special-tokens", *special, "--out", out],
                   check=True, capture_output=True)
    actual = json.loads(out.read_text())["model"]
    texts = [path.read_bytes().decode() for path in files]
    expected = json.loads(trained(GPT2, size, texts, special, byte_level=True).to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in expected["merges"]]
    same = actual["vocab"] == expected["vocab"] and actual["merges"] == merges
    print(f"trainer, {size} tokens of {sum(map(len, texts))} characters: {'0 differences' if same else 'different'}")
    if not same:
        first = next((i for i, (a, b) in enumerate(zip(actual["merges"], merges)) if a != b), min(len(actual["merges"]), len(merges)))
        print(f"  {len(actual['merges'])} and {len(merges)} merges, different at {first}: {actual['merges'][first:first + 3]} {merges[first:first + 3]}")
        judge.failures += 1


def main():
    gradtile, directory = sys.argv[1], Path(sys.argv[2])
    text = RandomText(seed=1)
    judge = Judge(gradtile, directory, documents(text, sys.argv[3:]))
    texts = text.sources + [text.document(2_000) for _ in range(50)]

    end = [AddedToken("<|endoftext|>", normalized=False, special=True)]
    gpt2 = trained(GPT2, 4000, texts, end, byte_level=True)
    judge_other_spellings(judge, judge_tokenizers(judge, "gpt2", gpt2), gpt2)
    llama3 = Tokenizer.from_str(trained(LLAMA3, 6000, texts, []).to_str().replace('"ignore_merges":false', '"ignore_merges":true'))
    judge_tokenizers(judge, "llama3", llama3)
    judge_tokenizers(judge, "nanochat", trained(NANOCHAT, 3000, texts, []))
    judge_tiktoken(judge, "cl100k", CL100K, trained(LLAMA3, 5000, texts, []))
    judge_tiktoken(judge, "o200k", O200K, trained(LLAMA3, 5000, texts, []))
    judge_tiktoken(judge, "llama3", LLAMA3, trained(LLAMA3, 5000, texts, []))
    judge_tiktoken(judge, "gpt2", GPT2, trained(GPT2, 2000, texts, []))
    judge_trainer(judge, 3000, judge.files, ["<|endoftext|>", "<|user|>"])
    sources = []
    for number, source in enumerate(text.sources):
        sources.append(directory / f"source_{number:03}.txt")
        sources[-1].write_text(source)
    judge_trainer(judge, 8000, sources, ["<|endoftext|>"])
    repeated = directory / "repeated.txt"
    repeated.write_text("".join(f"{'ab' * n} {'aaaa' * n} {'abcabc' * n}\n" for n in range(40)))
    judge_trainer(judge, 600, [repeated], ["<|endoftext|>"])
    if judge.failures:
        raise SystemExit(f"{judge.failures} comparisons failed")


if __name__ == "__main__":
    main()
