"""Makes tests/reference/tokenizers/sentencepiece: small models, and the ids that the libraries sentencepiece and tokenizers give for some texts.

usage: make_sentencepiece_reference.py    (with the packages of tests/judge/requirements.txt; tested with sentencepiece 0.2.0, tokenizers 0.23.3)
"""
import io
import json
import os
import sys
import tempfile
from pathlib import Path

import sentencepiece

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "judge")]
import make_tokenizer_reference as reference  # noqa: E402
import sentencepiece_judge as judge  # noqa: E402

FOLDER = Path(__file__).resolve().parent / "tokenizers" / "sentencepiece"
TEXTS = reference.TEXTS + ["<tok> a <tok>b", "x<word> <word>y <word>.", "<s>a</s>", "<sym>absym ab", " \u2581 \u2581\u2581a", "ＡＢＣ ①ﬁ", "İstanbul ΣΑΣ", "a\u0301\u0327", "!!!!!!!!!!!!!!!!!!!!!!!"]
# Replacements of characters, as code points: a small table in place of NFKC's 200 kB.
RULES = "FF21\t41\nFF22\t42\nFB01\t66 69\n65 301\tE9\n3000\t20\nA\t20\n200B\t\n"


def train(name, corpus, **options):
    """Without names of files, which a model would keep."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, vocab_size=500, character_coverage=0.98, minloglevel=2, num_threads=1, hard_vocab_limit=False,
        user_defined_symbols=["<sym>", "ab"], **options)
    (FOLDER / f"{name}.model").write_bytes(model.getvalue())


def main():
    FOLDER.mkdir(exist_ok=True)
    source = judge.RandomText(seed=3).sources[:20]
    corpus = [line for text in source for line in text.splitlines() if line.strip()]
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        rules = Path("rules.tsv")
        rules.write_text(RULES)
        train("bpe_rules", corpus, model_type="bpe", byte_fallback=True, normalization_rule_tsv=str(rules))
        train("bpe_identity", corpus, model_type="bpe", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False)
        train("bpe_plain", corpus, model_type="bpe", normalization_rule_name="identity", treat_whitespace_as_suffix=True)
        train("unigram_rules", corpus, model_type="unigram", normalization_rule_tsv=str(rules))
        train("unigram_bytes", corpus, model_type="unigram", byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False,
              allow_whitespace_only_pieces=True)
    all_ids = {}
    for path in sorted(FOLDER.glob("*.model")):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        all_ids[path.name] = [{"text": text, "ids": processor.encode(text)} for text in TEXTS]
    models = {name: FOLDER / f"{file}.model" for name, file in (("bpe_bytes_identity", "bpe_identity"), ("bpe_plain_identity", "bpe_plain"),
                                                                 ("unigram_bytes_identity", "unigram_bytes"), ("unigram_plain_identity", "unigram_rules"))}
    for name, tokenizer in judge.json_tokenizers(models):
        if name in ("words_True", "unigram_nfd", "unigram_nfkd", "unigram_nfc"):
            continue
        (FOLDER / f"{name}.json").write_text(json.dumps(json.loads(tokenizer.to_str()), ensure_ascii=True, separators=(",", ":")))
        tokenizer.encode_special_tokens = True
        texts = [text for text in TEXTS if "<s>" not in text] if name.startswith("unigram") else TEXTS
        all_ids[f"{name}.json"] = [{"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids} for text in texts]
    (FOLDER / "ids.json").write_text(json.dumps(all_ids, separators=(",", ":")))


if __name__ == "__main__":
    main()
