"""The text and the order of the data of small training runs, without any library: for judges that train, too."""
import itertools


def text_of_words(count):
    """As test::some_text() in tests/train/tiny_run.h."""
    words = ["the ", "cat ", "sat ", "on ", "a ", "mat.\n", "dog ", "ran "]
    state, text = 7, ""
    for _ in range(count):
        state = (state * 1664525 + 1013904223) % 2**32
        text += words[state >> 29]
    return text


# ---- train/data/data_loader.h, examples.h, permutation.h, core/philox.h ----

M32, M64 = 2**32 - 1, 2**64 - 1


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & M32, (a >> 32) ^ c[3] ^ k[1], a & M32]
        k = [(k[0] + 0x9E3779B9) & M32, (k[1] + 0xBB67AE85) & M32]
    return c


def mix_seed(seed, purpose):
    z = (seed + 0x9E3779B97F4A7C15 * (purpose + 1)) & M64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & M64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & M64
    return z ^ (z >> 31)


def key_of(seed):
    return seed & M32, seed >> 32


def permuted(i, n, key):
    half = max(4, ((n - 1).bit_length() + 1) // 2)
    mask = 2**half - 1
    while True:
        left, right = i >> half, i & mask
        for number in range(8):
            left ^= philox([right, number, 0, 0], key)[0] & mask
            left, right = right, left
        i = left << half | right
        if i < n:
            return i


def documents_of_window(config):
    """The most documents of a window that are trained on: train/config/train_config.cpp."""
    if not config["packed"]:
        return 1
    return min(config["max-documents"] or max(8, config["context"] // 8), config["context"])


def windows(ids, config, newline):
    """Yields (tokens, targets, documents) of every window of every epoch. `documents` numbers the document of each token from 0. Targets that do not
    count are -100, which F.cross_entropy ignores. `newline` is the id of the line break; text without packed documents is one document."""
    context, seed = config["context"], config["seed"]
    predictions, epoch = len(ids) - 1, 0

    def begins_document(i):
        return config["packed"] and i >= 2 and ids[i - 2 : i] == [newline, newline] and ids[i] != newline

    while True:
        draw = philox([epoch & M32, epoch >> 32, 0, 0], key_of(mix_seed(seed, 0x70686173)))
        phase = (draw[0] << 32 | draw[1]) % context
        count = (phase > 0) + -(-(predictions - phase) // context)
        order = key_of(mix_seed(mix_seed(seed, 0x6F726472), epoch))
        for position in range(count):
            border = (phase - context if phase > 0 else 0) + permuted(position, count, order) * context
            begin, end = max(border, 0), min(border + context, predictions)
            rest = context - (end - begin)
            documents = list(itertools.accumulate((i > begin and begins_document(i) for i in range(begin, end)), initial=0))[1:]
            targets = [-100 if begins_document(i + 1) or document >= documents_of_window(config) else ids[i + 1]
                       for i, document in zip(range(begin, end), documents)]
            yield ids[begin:end] + [0] * rest, targets + [-100] * rest, documents + documents[-1:] * rest
        epoch += 1
