"""Judges tests/reference/transformers_members.json: it names every member that transformers reads, and says rightly what each one changes.

usage: members_judge.py GRADTILE DIRECTORY    (scripts/judge.sh --torch calls it)

1. The table names every field of transformers' config classes, every name that the model's code reads from a config, every setting of generation
   and every argument of tokenizers. tests/tools/formats/transformers_members_test.cpp checks that the program follows the table.
2. Each value of the table is put into the files of a small model. If transformers cannot load them, the program may do anything. Otherwise
   values of harmless members must change neither logits, ids nor end tokens in transformers, and for the others an import must be refused, or
   give transformers' logits, ids and end tokens.
"""
import ast
import dataclasses
import inspect
import json
import re
import resource
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.modeling_rope_utils import RopeParameters

from gradtile_runs import run, tries

BOUND = 1e-5  # as in weights_judge.py
TABLE = json.loads((Path(__file__).resolve().parents[1] / "reference/transformers_members.json").read_text())
SETTINGS = "settings of generation"
# Each family's classes, and the settings of a small model.
SMALL = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=32, intermediate_size=48, tie_word_embeddings=True,
             max_position_embeddings=16)
GEMMA = dict(head_dim=12, query_pre_attn_scalar=10, sliding_window=3)
FAMILIES = {
    "gpt2": ("GPT2", dict(n_layer=2, n_head=2, n_embd=16, n_positions=16)),
    "llama": ("Llama", SMALL),
    "mistral": ("Mistral", dict(SMALL, sliding_window=3)),
    "qwen2": ("Qwen2", SMALL),
    "qwen3": ("Qwen3", dict(SMALL, head_dim=12)),
    "smollm3": ("SmolLM3", dict(SMALL, no_rope_layer_interval=2)),
    "olmo2": ("Olmo2", SMALL),
    "gemma2": ("Gemma2", dict(SMALL, **GEMMA, final_logit_softcapping=3.0, attn_logit_softcapping=2.0)),
    "gemma3_text": ("Gemma3", dict(SMALL, **GEMMA, layer_types=["sliding_attention", "full_attention"])),
    "gpt_neox": ("GPTNeoX", {name: value for name, value in SMALL.items() if name != "num_key_value_heads"}),
    "phi3": ("Phi3", dict(SMALL, original_max_position_embeddings=16)),
}
CLASSES = {kind: (getattr(transformers, f"{name}{'Text' if kind.endswith('_text') else ''}Config"),
                  getattr(transformers, f"{name}{'LMHeadModel' if kind == 'gpt2' else 'ForCausalLM'}")) for kind, (name, _) in FAMILIES.items()}
TEXTS = ["One day the fox<|endoftext|> met 12345 bears.", " It's\r\n\r\nWE'LL <|eot_id|>", ""]

# Files of transformers that read a config, and functions that take a tokenizer's arguments.
def sources_of(kind):
    folder = kind.removesuffix("_text")
    return [f"models/{folder}/modeling_{folder}.py"] + (["modeling_rope_utils.py"] if kind != "gpt2" else [])


SHARED_SOURCES = ["configuration_utils.py", "modeling_utils.py", "masking_utils.py", "cache_utils.py", "modeling_layers.py"]
# Names that the sources read from an object with "config" in its name which are no members of a config.json: methods, other objects than a
# model's config, class attributes that from_pretrained does not take from the file, and members of models with other heads.
NOT_MEMBERS = set("""
    add append attribute_map base_model_pp_plan base_model_tp_plan create_compatible_mapping default_config_fields device_map device_mesh disable_mmap
    disk_offload_folder distributed_config dtype_plan encoder from_pretrained get get_mtp_config get_text_config hf_quantizer ignore_mismatched_sizes
    is_heterogeneous is_quantized _is_quantized items keys nested_rope_parameter_keys offload_buffers pop popleft pretrained_model_name_or_path
    rope_parameters sanitize_kernel_mapping save_pretrained setdefault sharded_metadata standardize_rope_params sub_configs to_dict update
    validate_architecture validate_rope values weight_mapping weights_only _get_generation_parameters _getattr_without_heterogeneous_validation
    chain_hidden_post_norm mtp_hidden_states_first mtp_mlp_layer_types mtp_per_layer_config token_classification_bias first_k_dense_replace
    image_size image_token_id kv_sharing_modes mm_tokens_per_image number_of_conv_states patch_size quant_method init_std initializer_factor
    """.split())


def names_read(path):
    """Names that a file reads from a config."""
    def is_config(node):
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        return ("config" in name and "generation" not in name) or called == "get_text_config"

    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and is_config(node.value):
            yield node.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr") and is_config(node.args[0]):
            if isinstance(node.args[1], ast.Constant):
                yield node.args[1].value


def popped(function):
    """Keys that a function takes out of its keyword arguments."""
    return set(re.findall(r'(?:kwargs|init_kwargs|config)(?:\.pop\(|\.get\(|\[)"(\w+)"', inspect.getsource(function)))


def members_of_config(kind):
    config_class = CLASSES[kind][0]
    root = Path(transformers.__file__).parent
    names = {field.name for field in dataclasses.fields(config_class)} | set(config_class().to_dict()) | set(config_class.attribute_map)
    names |= popped(transformers.PreTrainedConfig.__post_init__) | ({"rope_scaling", "rope_theta", "partial_rotary_factor"} if kind != "gpt2" else set())
    for source in sources_of(kind) + SHARED_SOURCES:
        names |= {name for name in names_read(root / source) if not name.startswith("__")}
    # What only other families have: a GPT-2's config has no rotary positions, a Llama's no summary.
    own = set(TABLE[f"config.json of {kind}"])
    foreign = set().union(*(TABLE[f"config.json of {other}"] for other in FAMILIES)) - own
    declared = {field.name for field in dataclasses.fields(config_class)} | set(config_class.attribute_map)
    return names - NOT_MEMBERS - (foreign - declared)


def members_of_tokenizer():
    from transformers import PreTrainedTokenizerFast
    from transformers.models.gpt2.tokenization_gpt2 import GPT2Tokenizer
    from transformers.tokenization_utils_base import PreTrainedTokenizerBase

    names = set(PreTrainedTokenizerBase.SPECIAL_TOKENS_ATTRIBUTES)
    for function in (PreTrainedTokenizerBase.__init__, PreTrainedTokenizerBase._from_pretrained, PreTrainedTokenizerBase.save_pretrained,
                     PreTrainedTokenizerFast.__init__, transformers.AutoTokenizer.from_pretrained):
        names |= popped(function)
    names |= set(inspect.signature(GPT2Tokenizer.__init__).parameters)
    # What callers pass, and what transformers computes from the tokenizer's files.
    return names - set("""self kwargs args vocab merges unk_id tokenizer tokenizer_object gguf_file post_processor tokenizer_padding tokenizer_truncation
        _json_truncation _json_padding _spm_precompiled_charsmap config tokenizer_type code_revision mistral_format revision token cache_dir
        _from_auto AutoTokenizer commit_message repo_id filename_prefix save_jinja_files special additional_chat_templates""".split())


def judge_names():
    titles = {**{f"config.json of {kind}": (members_of_config(kind), ["config.json", f"config.json of {kind}", SETTINGS]) for kind in FAMILIES},
              "rope_parameters": (set(RopeParameters.__annotations__), ["rope_parameters"]),
              "generation_config.json": (set(GenerationConfig().to_dict()) | set(GenerationConfig._get_default_generation_params())
                                         | popped(GenerationConfig.__init__), ["generation_config.json", SETTINGS]),
              "tokenizer_config.json": (members_of_tokenizer(), ["tokenizer_config.json"])}
    failed = False
    for title, (names, tables) in titles.items():
        missing = sorted(names - set().union(*(TABLE[table] for table in tables)))
        failed |= bool(missing)
        print(f"{title}: transformers {transformers.__version__} reads {len(names)} members; the table lacks {missing or 'none'}")
    return failed


def small_model(kind, folder, tokenizer):
    """A model that transformers makes, with a tokenizer of the program."""
    torch.manual_seed(3)
    vocabulary = len(json.loads(tokenizer.read_text())["model"]["vocab"]) + 4
    config_class, model_class = CLASSES[kind]
    model = model_class(config_class(**FAMILIES[kind][1], vocab_size=vocabulary, initializer_range=0.3, bos_token_id=0, eos_token_id=0, pad_token_id=None))
    model.save_pretrained(folder)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}))


TOKENS = np.random.default_rng(1).integers(0, 300, 16)


def theirs(folder):
    """Logits, ids and end tokens in transformers; or None if transformers does not load the folder."""
    try:
        # Some settings switch on what cannot run here, and none of these is a member of a file.
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(folder)
        with torch.no_grad():
            logits = model(torch.tensor(TOKENS[None])).logits[0].numpy()
        end = model.generation_config.eos_token_id
        return logits, [tokenizer(text)["input_ids"] for text in TEXTS], sorted(end if isinstance(end, list) else [] if end is None else [end])
    except Exception:  # whatever the value breaks
        return None


def ours(gradtile, folder, work):
    """The same for the program, or the reason why it refuses the folder."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    refusal = tries(gradtile, "import", folder, "--out", work / "run")
    if refusal is not None:
        return refusal
    TOKENS.astype("<u2").tofile(work / "tokens.bin")
    run(gradtile, "eval", work / "run", "--data", work / "tokens.bin", "--device", "cpu", "--logits", work / "logits.safetensors")
    with safe_open(work / "logits.safetensors", "np") as file:
        logits = file.get_tensor("logits")
    run(gradtile, "export", work / "run", "--dtype", "f32", "--out", work / "exported")
    return logits, theirs(work / "exported")


def largest(a, b):
    return float(np.abs(a - b).max() / np.abs(b).max())


def judge_values(gradtile, directory, kind, tokenizer):
    folder, work = directory / "model", directory / "work"
    small_model(kind, folder, tokenizer)
    base = theirs(folder)
    counts = {"harmless": 0, "equal": 0, "refused": 0, "not loaded by transformers": 0}
    failed = False
    tables = [("config.json", "config.json"), (f"config.json of {kind}", "config.json")]
    if kind == "llama":  # the other files do not depend on the type of the model
        tables += [(SETTINGS, "generation_config.json"), ("generation_config.json", "generation_config.json"), ("tokenizer_config.json", "tokenizer_config.json")]
    for title, file in tables:
        original = (folder / file).read_text()
        own = TABLE[f"config.json of {kind}"] if title in ("config.json", SETTINGS) else {}
        for name, entry in TABLE[title].items():
            if name in own:
                continue
            for value in entry["values"] + entry.get("neutral", []):
                (folder / file).write_text(json.dumps({**json.loads(original), name: value}))
                expected = theirs(folder)
                wrong = []
                if expected is None:
                    counts["not loaded by transformers"] += 1
                    continue
                found = None if entry["is"] == "harmless" else ours(gradtile, folder, work)
                if found is None:
                    counts["harmless"] += 1
                    if largest(expected[0], base[0]) > BOUND or expected[1:] != base[1:]:
                        wrong.append("logits, ids or end tokens change")
                elif isinstance(found, str):
                    counts["refused"] += 1
                else:
                    counts["equal"] += 1
                    logits, again = found
                    # The program computes as many tokens as its context has. Later tokens do not change them.
                    expected = (expected[0][: len(logits)], *expected[1:])
                    if largest(logits, expected[0]) > BOUND:
                        wrong.append(f"logits differ by {largest(logits, expected[0]):.1e}")
                    if again is None or again[1] != expected[1]:
                        wrong.append(f"ids {expected[1]} become {again and again[1]}")
                    if again is None or again[2] != expected[2]:
                        wrong.append(f"end tokens {expected[2]} become {again and again[2]}")
                failed |= bool(wrong)
                if wrong:
                    print(f"{kind}: {title}: {name}: {value!r}: {'; '.join(wrong)}")
        (folder / file).write_text(original)
    print(f"{kind}: {', '.join(f'{count} {what}' for what, count in counts.items())}")
    return failed or base is None


def main(gradtile, directory):
    # Some values would make transformers allocate without end.
    resource.setrlimit(resource.RLIMIT_AS, (1 << 34, 1 << 34))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    text, tokenizer = directory / "text.txt", directory / "tokenizer.json"
    run(gradtile, "corpus", "--characters", "20000", "--out", text)
    run(gradtile, "tokenizer", "train", "--data", text, "--vocabulary", "380", "--out", tokenizer)
    failed = judge_names()
    for kind in FAMILIES:
        folder = directory / kind
        folder.mkdir()
        failed |= judge_values(gradtile, folder, kind, tokenizer)
    return failed


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    sys.exit(main(Path(sys.argv[1]).absolute(), Path(sys.argv[2])))
