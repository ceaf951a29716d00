"""Makes tests/reference/tokenizers: small vocabularies, and the ids that the tokenizers and tiktoken libraries give for some texts.

usage: make_tokenizer_reference.py    (with the packages of tests/judge/requirements.txt; tested with tokenizers 0.23.3, tiktoken 0.14.0)
"""
import base64
import json
import sys
from pathlib import Path

import tiktoken
from tokenizers import AddedToken, Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "judge"))
import tokenizer_judge as judge  # noqa: E402

FOLDER = Path(__file__).resolve().parent / "tokenizers"
TEXTS = [
    "", " ", "\n", "hello world", "Hello, World!  It's  they'RE we'LL I'd 'S 'ſ", "a\n\n\n  b \t c   ", "  leading and trailing  ", "x  \r\n\r\n  y",
    "tabs\t\t\tand\x0b\x0c\x1c\x1d\x1e\x1f", "\u0085next\u0085\u0085line", "\u180emongolian\u180e \u180e vowel", "\u2028\u2029\u3000wide\u3000\u00a0nbsp\u00a0",
    "1234567 12 ³²¹ ٣٤٥ Ⅻ ½", "for (int i = 0; i < n; ++i) { sum += x[i] * y[i]; }", "naïve café zażółć ЖЖЖ ελληνικά עברית العربية हिन्दी ไทย",
    "日本語のテキスト。中文文本，没有空格。한국어 텍스트", "👩\u200d👩\u200d👧 🇩🇪 1️⃣ ❤️ 👍🏽", "e\u0301a\u0308\u0332 combining", "a" * 100 + "!" * 70, "a\0b\0\0c",
    "<|endoftext|>text<|endoftext|><|endof", "\ufeffbom \u200b zero \u2060", "https://example.org/a_b-c?d=e&f=%20#g", "'s't'm'", "HTTPServer'S camelCaseWord ÀÉÎõü ǅaǅ ªº ʰa !//\r\n/", "\U0001F3FD\U000E0041\uFFFD\uE000",
]


def cases(encode):
    return [{"text": text, "ids": encode(text)} for text in TEXTS]


def write(name, text):
    (FOLDER / name).write_text(text)


def main():
    texts = TEXTS + judge.RandomText(seed=3).sources[:20]
    end = [AddedToken("<|endoftext|>", normalized=False, special=True)]
    gpt2 = judge.trained(judge.GPT2, 420, texts, end, byte_level=True)
    llama3 = judge.trained(judge.LLAMA3, 460, texts, end)
    llama3.add_tokens([AddedToken("wor", normalized=True), AddedToken("world", normalized=True)])
    llama3 = Tokenizer.from_str(llama3.to_str().replace('"ignore_merges":false', '"ignore_merges":true'))
    for name, tokenizer in (("gpt2", gpt2), ("llama3", llama3)):
        write(f"{name}.json", json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, separators=(",", ":")))
        tokenizer.encode_special_tokens = True
        plain = cases(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
        tokenizer.encode_special_tokens = False
        special = cases(lambda text: tokenizer.encode(text, add_special_tokens=False).ids)
        write(f"{name}_ids.json", json.dumps({"as_text": plain, "recognised": special}, separators=(",", ":")))
    table = judge.bytes_of_characters()
    for name, file, pattern in (("cl100k", "cl100k.tiktoken", judge.CL100K), ("o200k", "o200k.tiktoken", judge.O200K),
                                ("llama3_ranks", "tokenizer.model", judge.LLAMA3)):
        vocabulary = judge.trained(judge.LLAMA3, 440, texts, []).get_vocab()
        ranks = {bytes(table[c] for c in token): id for token, id in vocabulary.items()}
        write(file, "".join(f"{base64.b64encode(token).decode()} {id}\n" for token, id in sorted(ranks.items(), key=lambda item: item[1])))
        encoding = tiktoken.Encoding("reference", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        write(f"{name}_ids.json", json.dumps({"as_text": cases(encoding.encode_ordinary)}, separators=(",", ":")))


if __name__ == "__main__":
    main()
