"""Judges models of SentencePiece: the ids of `gradtile tokenize` must equal those of the libraries sentencepiece and tokenizers.

usage: sentencepiece_judge.py GRADTILE DIRECTORY [CHARACTERS [FILE]...]    (scripts/judge.sh calls it)

The texts are random ones, among them thousands of short hostile texts, and those of the files. The model files are the four of the package
mistral-common, and eight that are trained here: BPE and Unigram, with and without byte fallback, with NFKC and without normalization. Later
versions of sentencepiece than 0.2.0 add the scores of Unigram in another order, and differ in the choice between equal sequences. The files
tokenizer.json are made here from the trained models in the ways in which Llama 2, Mistral and Gemma write them.
"""
import sys
import unicodedata
from importlib.resources import files
from pathlib import Path

import numpy as np
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

from tokenizer_judge import Judge, RandomText, documents

BLANK = "\u2581"


def characters_of_newer_tables(characters):
    """Characters that the Unicode tables of the library tokenizers lack: they normalize to something else than Python says."""
    forms = {"NFD": normalizers.NFD(), "NFKC": normalizers.NFKC()}
    newer = set()
    for character in characters:
        if unicodedata.combining(character) or unicodedata.decomposition(character):
            for example in (character, "a\u0301" + character + "\u0334\u0327", "a" + character + "\u0301"):
                if any(form.normalize_str(example) != unicodedata.normalize(name, example) for name, form in forms.items()):
                    newer.add(character)
    return newer


def hostile_texts(text, count):
    """Short texts of what tokenizers treat specially."""
    parts = ["", " ", "  ", "\n", "\t", BLANK, BLANK * 2, " " + BLANK, "<s>", "</s>", "<unk>", "<0x41>", "<0x0A>", "\u0301", "e\u0301", "\u1e9b\u0323", "ﬁ", "Å", "한", "\u1100\u1161\u11a8",
             "\ufdfa", "\u3000", "\u00a0", "\u200b", "\ufeff", "\0", "\x7f", "İ", "ΣΑΣ", "ẞ", "ǅ", "①", "㍿", "½", "😀", "👩\u200d💻", "\U0010ffff", "a", "B", "the", " the", "1", "<tok>", " <tok> ", "<word>", "x<word>", "<word>y",
             "<sym>", "ab<sym>cd", "\u0327\u0301\u0327", "가각", "が", "か\u3099", "ﾊﾞ", "\U0001d15e", "\u0344", "\u2126", "\u212b", "\ue000"]
    texts = []
    while len(texts) < count:
        pieces = [text.random.choice(parts) if text.random.random() < 0.7 else text.block() for _ in range(text.random.randint(1, 9))]
        texts += ["".join(pieces)] if any(pieces) else []
    return texts


class Comparison:
    def __init__(self, judge, hostile):
        self.judge, self.failures = judge, 0
        self.documents = judge.documents + hostile
        self.files = list(judge.files)
        for number, document in enumerate(hostile):
            self.files.append(judge.directory / f"hostile_{number:05}.txt")
            self.files[-1].write_bytes(document.encode())

    def compare(self, name, path, encode, without=()):
        """Compares the documents one by one, because an empty document has no ids and a difference has a place. Leaves out documents with
        the texts `without`."""
        chosen = [number for number, document in enumerate(self.documents) if not any(text in document for text in without)]
        actual = self.judge.ids(path, [self.files[number] for number in chosen])
        place = 0
        for document in (self.documents[number] for number in chosen):
            expected = np.asarray(encode(document), np.int64)
            part = actual[place:place + len(expected)]
            if len(part) != len(expected) or (part != expected).any():
                different = next((i for i, (a, b) in enumerate(zip(part, expected)) if a != b), len(part))
                print(f"{name}: different at id {different} of {document[:60]!r}...:\n  gradtile {part[max(different - 3, 0):different + 8]}\n"
                      f"  judge    {expected[max(different - 3, 0):different + 8]}")
                self.failures += 1
                return
            place += len(expected)
        if place != len(actual):
            print(f"{name}: {len(actual)} ids; expected {place}")
            self.failures += 1
            return
        print(f"{name}: {len(actual)} ids of {len(chosen)} texts, 0 differences")

    def model_file(self, name, path):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.compare(f"sentencepiece, {name}", path, processor.encode)

    def json_file(self, name, tokenizer):
        path = self.judge.directory / f"{name}.json"
        tokenizer.encode_special_tokens = True  # plain text is the default of `gradtile tokenize`
        tokenizer.save(str(path))
        # In Unigram models of this library, the text of a special token always becomes the token.
        special = ("<s>", "</s>", "<unk>") if name.startswith("unigram") else ()
        self.compare(f"tokenizers, {name}", path, lambda text: tokenizer.encode(text, add_special_tokens=False).ids, special)


def trained_models(judge, texts):
    corpus = judge.directory / "corpus.txt"
    corpus.write_text("\n".join(line for text in texts for line in text.splitlines() if line.strip()))
    for kind in ("bpe", "unigram"):
        for byte_fallback in (False, True):
            for rule in ("nfkc", "identity"):
                name = f"{kind}_{'bytes' if byte_fallback else 'plain'}_{rule}"
                sentencepiece.SentencePieceTrainer.train(
                    input=str(corpus), model_prefix=str(judge.directory / name), model_type=kind, vocab_size=3000, byte_fallback=byte_fallback,
                    normalization_rule_name=rule, character_coverage=0.98, user_defined_symbols=["<sym>", "ab"], minloglevel=2, num_threads=2,
                    remove_extra_whitespaces=rule == "nfkc", hard_vocab_limit=False, max_sentence_length=100000,
                    allow_whitespace_only_pieces=rule == "identity")
                yield name, judge.directory / f"{name}.model"


def merges_of(vocabulary):
    """The merges that transformers derives from a model of SentencePiece: all cuts of a token in two, by the token's id."""
    merges = []
    for token, id in vocabulary.items():
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocabulary and token[i:] in vocabulary]
        merges += sorted(cuts, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]]))
    return merges


def llama_decoder():
    return decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def json_tokenizers(models_by_name):
    """tokenizer.json in the ways of Llama 2, Mistral and Gemma, and with every other part that is supported."""
    def bpe(name, **options):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(models_by_name[name]))
        vocabulary = {processor.id_to_piece(id): id for id in range(len(processor))}
        tokenizer = Tokenizer(models.BPE(vocabulary, merges_of(vocabulary), unk_token="<unk>", **options))
        tokenizer.decoder = llama_decoder()
        tokenizer.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in ("<unk>", "<s>", "</s>")])
        return tokenizer

    def unigram(name, **options):
        processor = sentencepiece.SentencePieceProcessor(model_file=str(models_by_name[name]))
        pieces = [(processor.id_to_piece(id), processor.get_score(id)) for id in range(len(processor))]
        tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, **options))
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer

    llama = bpe("bpe_bytes_identity", fuse_unk=True, byte_fallback=True)
    llama.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    llama.post_processor = TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    yield "llama2", llama
    mistral = bpe("bpe_bytes_identity", fuse_unk=True, byte_fallback=True)
    mistral.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False)
    yield "mistral", mistral
    gemma = bpe("bpe_bytes_identity", fuse_unk=True, byte_fallback=True)
    gemma.normalizer = normalizers.Replace(" ", BLANK)
    gemma.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    gemma.add_tokens([AddedToken("<tok>", normalized=False), AddedToken("\n\n", normalized=False)])
    yield "gemma", gemma
    for fuses in (False, True):
        words = bpe("bpe_plain_identity", fuse_unk=fuses)
        words.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="always", split=True)
        words.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        words.add_tokens([AddedToken("<tok>", lstrip=True, rstrip=True, normalized=False), AddedToken("<word>", single_word=True)])
        yield f"words_{fuses}", words
    for name, form in (("nfc", normalizers.NFC()), ("nfd", normalizers.NFD()), ("nfkc", normalizers.NFKC()), ("nfkd", normalizers.NFKD())):
        tokenizer = unigram("unigram_bytes_identity", byte_fallback=True) if name == "nfkc" else unigram("unigram_plain_identity")
        tokenizer.normalizer = form
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="first" if name == "nfd" else "always")
        yield f"unigram_{name}", tokenizer
    whole = unigram("unigram_plain_identity")
    whole.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    yield "unigram_whole", whole


def byte_level(texts):
    """Qwen's pipeline: NFC before byte-level BPE."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=3000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_tokens([AddedToken("<tok>", lstrip=True), AddedToken("<word>", single_word=True, rstrip=True)])
    return tokenizer


def main():
    gradtile, directory = sys.argv[1], Path(sys.argv[2])
    text = RandomText(seed=2)
    newer = characters_of_newer_tables(text.characters)
    text.characters = [character for character in text.characters if character not in newer]
    text.marks = [character for character in text.marks if character not in newer]
    text.numbers = [character for character in text.numbers if character not in newer]
    judge = Judge(gradtile, directory, documents(text, sys.argv[3:]))
    comparison = Comparison(judge, hostile_texts(text, 5_000))
    for path in sorted(Path(str(files("mistral_common") / "data")).glob("*.model*")):
        comparison.model_file(path.name, path)
    texts = text.sources + [text.document(2_000) for _ in range(50)]
    models_by_name = dict(trained_models(judge, texts))
    for name, path in models_by_name.items():
        comparison.model_file(name, path)
    for name, tokenizer in json_tokenizers(models_by_name):
        comparison.json_file(name, tokenizer)
    comparison.json_file("byte_level_nfc", byte_level(texts))
    if comparison.failures:
        raise SystemExit(f"{comparison.failures} comparisons failed")


if __name__ == "__main__":
    main()
