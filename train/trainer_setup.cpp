#include <gradtile/train/trainer.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include <gradtile/core/available_memory.h>
#include <gradtile/core/text/formatted.h>
#include <gradtile/core/text/json_value.h>
#include <gradtile/train/checkpoint/checkpoint_names.h>
#include <gradtile/train/common_state.h>
#include <gradtile/train/config/refused_combinations.h>
#include <gradtile/train/data/dataset.h>
#include <gradtile/train/data/document_stream.h>
#include <gradtile/train/data/examples.h>
#include <gradtile/train/data/token_file.h>
#include <gradtile/train/memory_choice.h>
#include <gradtile/train/memory_request.h>
#include <gradtile/train/model/merged_adapters.h>
#include <gradtile/train/run/resume_point.h>
#include <gradtile/train/run/shared_start.h>
#include <gradtile/train/run_clock.h>
#include <gradtile/train/run_recorder.h>
#include <gradtile/train/step_runner.h>
#include <gradtile/train/tokenizers/tokenizer_files.h>

/// Makes a Trainer from settings or from a checkpoint.
namespace gradtile {
namespace {

/// Adds {"the content of data (train.bin)": {"bytes": ..., "hash": ...}} for each file, to compare all ranks'
/// data. Only file names are added, because directories may differ between ranks.
void add_contents(JsonValue& facts, const TrainConfig& config, const JsonValue& content) {
    for (const auto& [name, files] : content.items()) {
        const std::filesystem::path path = name == "data" ? config.data : config.val_data;
        facts.set(concat("the content of ", name, " (", path.filename().string(), ")"),
                  files.size() == 1 ? files[0] : files);
    }
}

/// Returns the thread count. The processes on a host share its cores, unless each process is bound to some
/// cores.
int threads_of(const TrainConfig& config, const RankEnvironment& environment) {
    if (config.threads > 0) return static_cast<int>(config.threads);
    const int share = static_cast<int>(std::thread::hardware_concurrency()) / environment.local_size;
    return std::clamp(share, 1, usable_cores());
}

/// Refuses ids that no token has. Such an id would have no effect, and a packed run would silently treat all
/// tokens as one document. This happens with llm.c shards from `gradtile tokenize` and a tokenizer other than
/// GPT-2's: their separator is not the format's. A run that began before this check may still be resumed.
void check_token_ids(const TrainConfig& config) {
    const std::int64_t vocabulary = config.model.vocabulary;
    check(config.ignore_token < vocabulary, "ignore-token: ", config.ignore_token,
          "; expected -1 or an id of the vocabulary of ", vocabulary);
    check(!config.packed || config.document_token < vocabulary, "packed: documents would begin at token ",
          config.document_token, ", which the vocabulary of ", vocabulary,
          " does not have; expected document-token, the id of the token that begins a document");
}

/// Overwrites the settings of a run that is resumed. Returns the new last step, if there is one: the setting
/// `steps` stays the schedule's horizon.
std::optional<std::int64_t> change_settings(TrainConfig& config, const JsonValue& changes) {
    check_may_change(changes);
    check(!changes.contains("steps") || config.time_budget.empty(),
          "steps: the run ends with its time-budget, ", config.time_budget, "; expected no number of steps");
    const std::int64_t horizon = config.steps;
    const std::string val_data = config.val_data;
    apply_json(config, changes, "resume");
    check(!changes.contains("val-data") || (!val_data.empty() && !config.val_data.empty()), "val-data: '",
          config.val_data, "' when the run was made with '", val_data,
          "'; expected the same data at another place");
    const std::int64_t last_step = std::exchange(config.steps, horizon);
    return changes.contains("steps") ? std::optional(last_step) : std::nullopt;
}

/// Waits for the memory of a lost process whose GPU this one takes: it may become free a moment after the
/// process has ended.
void wait_for_free_memory(Device device, std::size_t bytes) {
    constexpr auto interval = std::chrono::milliseconds(100);
    constexpr int max_intervals = 100;
    for (int i = 0; i < max_intervals && available_memory(device) < bytes; ++i)
        std::this_thread::sleep_for(interval);
}

/// How many tokens at the data's start are searched for documents.
constexpr std::int64_t tokens_with_documents = std::int64_t{1} << 20;
/// One document with more windows than this is reported: the data may lack the blank lines or separators that
/// the run expects, and would be trained on as if it were not packed.
constexpr std::int64_t windows_of_one_document = 10;

std::string places_of_documents(const DocumentRule& rule) {
    switch (rule.kind) {
        case DocumentRule::Kind::none:
            break;
        case DocumentRule::Kind::separator:
            return concat("at token ", rule.token);
        case DocumentRule::Kind::blank_lines:
            return "after blank lines";
        case DocumentRule::Kind::examples:
            return "with conversations";
    }
    throw Error("packing: unknown rule");
}

/// Returns the tokenizer of a run that starts with a checkpoint's weights: the checkpoint's; none if it has
/// none. Refuses a setting that chooses another tokenizer, because the weights' ids mean the tokens of the
/// checkpoint's. The default chooses nothing.
std::optional<Tokenizer> tokenizer_to_start_with(const Checkpoint& checkpoint, const std::string& source,
                                                 const std::string& setting) {
    std::optional<Tokenizer> own = tokenizer_of(checkpoint, source);
    if (!own || setting == TrainConfig().tokenizer) return own;
    const std::optional<Tokenizer> chosen = tokenizer_kind_of(setting) == TokenizerKind::bytes
                                                ? Tokenizer::bytes()
                                                : tokenizer_of_setting(setting);
    check(own == chosen, "tokenizer ", setting, ": differs from the one that ", source,
          " was trained with, whose ids its weights mean; expected none, or the same");
    return own;
}

}  // namespace

DatasetOptions dataset_options(const TrainConfig& config) {
    return {.data = config.data,
            .val_data = config.val_data,
            .val_fraction = config.val_fraction,
            .tokenizer = tokenizer_kind_of(config.tokenizer),
            .makes_tokenizer = config.init_from.empty() || config.tokenizer != TrainConfig().tokenizer,
            .token_type = config.token_type,
            .vocabulary = config.model.vocabulary,
            .special_tokens = config.packed ? SpecialTokens::recognised : SpecialTokens::as_text,
            .chat_template = config.chat_template,
            .train_on = config.train_on,
            .text_column = config.text_column,
            .token_cache = config.token_cache,
            .stream_buffer = config.stream_buffer,
            .stream_seed = Seed{config.seed}};
}

Trainer::Trainer(TrainConfig config, MessageHandler on_message, std::shared_ptr<ProcessGroup> group,
                 Purpose purpose, StoryParser stories)
    : config_(std::move(config)),
      on_message_(group->is_root() ? std::move(on_message) : [](const std::string&) {}),
      stories_(std::move(stories)),
      group_(std::move(group)),
      recorder_(std::make_unique<RunRecorder>(callbacks_, on_message_)) {
    group_->require_equal("settings", to_json(config_).dump());
    validate(config_, group_->size());
    check(config_.adapters.rank == 0 || !config_.init_from.empty() || purpose == Purpose::plan,
          "lora-rank: ", config_.adapters.rank,
          " without init-from; expected the run or checkpoint whose weights the adapters adapt");
    const Start start = read_first_weights();
    if (start.checkpoint) {
        build(tokenizer_to_start_with(*start.checkpoint, start.source, config_.tokenizer));
        name_first_tokenizer();
    } else {
        build({});
    }
    check_token_ids(config_);
    // Rank 0's paths are saved. Other ranks may have their own file copies.
    make_paths_absolute(config_);
    if (start.checkpoint) keep_imported_text(*start.checkpoint, start.source);
    take_first_weights(start);
    identity_ = group_->broadcast(new_run_identity());
    if (purpose == Purpose::train && !config_.out.empty()) start_in_directory();
}

Trainer::Trainer(const std::filesystem::path& run, const ResumeOptions& options, MessageHandler on_message,
                 std::shared_ptr<ProcessGroup> group, StoryParser stories)
    : on_message_(group->is_root() ? std::move(on_message) : [](const std::string&) {}),
      stories_(std::move(stories)),
      group_(std::move(group)),
      recorder_(std::make_unique<RunRecorder>(callbacks_, on_message_)) {
    std::optional<RunDirectory> directory;
    std::filesystem::path checkpoint;
    std::vector<std::string> messages;
    const Start start = shared_start(*group_, [&] {
        directory = RunDirectory::open(run);
        ResumePoint point = find_resume_point(*directory, options.restart);
        messages = std::move(point.messages);
        if (!point.checkpoint) return Start{directory->config_file().string(), {}};
        checkpoint = point.path;
        return Start{point.path.string(), std::move(point.checkpoint)};
    });
    identity_ = group_->broadcast(directory ? directory->identity() : std::string());
    resumed_from_ = start.source;
    begun_ = true;
    if (start.checkpoint) {
        apply_json(config_, start.checkpoint->config, start.source);
    } else {
        config_ = shared_config(*group_, directory);
    }
    config_.out = run.string();
    const std::optional<std::int64_t> last_step = change_settings(config_, options.changes);
    group_->require_equal("settings", to_json(config_).dump());
    validate(config_, group_->size());
    check(start.checkpoint || !config_.data.empty(), "resume: '", run.string(),
          "' holds neither a checkpoint nor the name of data to train on, as after an import that was "
          "interrupted; import into it again");
    for (const std::string& line : messages) on_message_(line);

    if (start.checkpoint) {
        const JsonValue* const content = start.checkpoint->data.find(data_content_key);
        if (!content)
            on_message_(concat(start.source,
                               ": has no record of its training data; this data is used "
                               "without a comparison"));
        build(tokenizer_of(*start.checkpoint, start.source), content ? *content : JsonValue());
        runner_->replica().model.imported_text =
            imported_text_of(*start.checkpoint, config_.model.vocabulary, start.source);
        restore(*start.checkpoint, start.source);
        recorder_->resume_from(step_, checkpoint);
    } else {
        build({});
        check(config_.init_from.empty(), "resume: '", run.string(),
              "' has no checkpoint, and began with other weights; start it again with --init-from ",
              config_.init_from);
        runner_->replica().initialize(Seed{config_.seed});
    }
    make_paths_absolute(config_);
    if (last_step) end_ = *last_step;
    check(end_ >= 1, "steps: ", end_, "; expected at least 1");
    check(end_ >= step_, "steps: ", end_, "; the run is at step ", step_, "; expected at least ", step_);
    if (!is_finished())
        resume_in_directory(std::move(directory), step_,
                            pending_evaluation_ ? LastStep::unwritten : LastStep::written);
}

Trainer::Trainer(Replacement, MessageHandler on_message, std::shared_ptr<ProcessGroup> group,
                 StoryParser stories)
    : on_message_(group->is_root() ? std::move(on_message) : [](const std::string&) {}),
      stories_(std::move(stories)),
      group_(std::move(group)),
      recorder_(std::make_unique<RunRecorder>(callbacks_, on_message_)) {
    begun_ = true;
    has_state_ = false;
    const CommonState common = find_common_state();
    const Start start = share_position(common);
    resumed_from_ = start.source;
    const Checkpoint& state = *start.checkpoint;
    apply_json(config_, state.config, start.source);
    identity_ = run_identity_of(state, start.source);
    build(tokenizer_of(state, start.source), state.data[data_content_key]);
    runner_->replica().model.imported_text = imported_text_of(state, config_.model.vocabulary, start.source);
    std::optional<RunDirectory> directory;
    if (group_->is_root() && !config_.out.empty()) directory = RunDirectory::open(config_.out);
    const Recorded recorded = take_state(common, start, directory ? &*directory : nullptr);
    if (common.step >= 0) {
        restore_record(state);
        restore_algorithms(state, start.source);
    }
    if (!config_.out.empty()) resume_in_directory(std::move(directory), recorded.step, recorded.last);
}

Trainer::~Trainer() {
    if (directory() != nullptr && !begun_ && !recorder_->is_in_forked_child()) directory()->discard();
}

/// Collective: reads the weights that the run starts with, unless they are drawn.
Start Trainer::read_first_weights() const {
    if (config_.init_from.empty()) return {};
    return shared_start(*group_, [&] {
        return Start{config_.init_from,
                     merged_adapters(load_checkpoint(config_.init_from, {}, on_message_), config_.init_from)};
    });
}

void Trainer::take_first_weights(const Start& start) {
    const Seed seed{config_.seed};
    if (start.checkpoint) {
        runner_->replica().start_from(*start.checkpoint, start.source, seed);
    } else {
        runner_->replica().initialize(seed);
    }
}

void Trainer::build(const std::optional<Tokenizer>& tokenizer, const JsonValue& expected_content) {
    const RankEnvironment& environment = group_->environment();
    const Context ctx =
        Context(resolve_device(config_.device, environment.local_rank), threads_of(config_, environment))
            .with_tf32(config_.tf32)
            .with_deterministic(config_.training.deterministic);
    check_device(config_, ctx.device());
    std::unique_ptr<Communicator> communicator = make_communicator(ctx, *group_);
    check(config_.shard_copies == 0 || (group_->can_regroup() && communicator->can_reconnect()),
          "shard-copies: ", config_.shard_copies,
          "; expected 0, because lost processes are not replaced here; gradtile train --processes replaces "
          "them, unless --on-loss is stop");
    DatasetOptions options = dataset_options(config_);
    options.stories = stories_;
    options.expected_content = expected_content;
    // On the CPU the cores compute the steps meanwhile.
    options.stream_threads = ctx.device().is_cpu() ? 1 : threads_of(config_, environment);
    Dataset dataset = load_dataset(options, tokenizer ? tokenizer : tokenizer_of_setting(config_.tokenizer));
    if (config_.model.vocabulary == 0) config_.model.vocabulary = dataset.vocabulary;
    check(config_.model.vocabulary >= dataset.vocabulary, "vocabulary: ", config_.model.vocabulary,
          "; the data needs ", dataset.vocabulary);
    // Recorded, so that a resumed run, `gradtile eval` and `gradtile chat` use the same template.
    if (dataset.chat_template) config_.chat_template = *dataset.chat_template;
    if (config_.packed) choose_document_token(dataset);
    train_tokens_ = dataset.train.size();
    validation_tokens_ = dataset.validation.size();
    source_loss_ = dataset.source_loss;
    data_content_ = dataset.content;
    stream_ = dataset.stream;
    const Packing packing = packing_of_data(dataset);
    data_description_ = dataset.description;
    if (config_.model.vocabulary > dataset.vocabulary)
        data_description_.push_back(concat("vocabulary ", grouped(config_.model.vocabulary),
                                           " as set; the data needs ", grouped(dataset.vocabulary),
                                           "; the rest costs only memory and time (a run with vocabulary ",
                                           dataset.vocabulary, " avoids this)"));
    if (stream_ && packing.has_ranges())
        data_description_.push_back(concat("prompts that have, with all their completions, more than ",
                                           config_.model.context + 1, " tokens (context + 1) are left out"));
    for (const TokenSequence* tokens : {&dataset.train, &dataset.validation})
        if (std::string note = note_on_long_examples(*tokens, config_.model.context, packing); !note.empty())
            data_description_.push_back(std::move(note));
    JsonValue facts = JsonValue::object({{"vocabulary", config_.model.vocabulary},
                                         {"training tokens", train_tokens_},
                                         {"validation tokens", validation_tokens_}});
    add_contents(facts, config_, data_content_);
    data_facts_ = facts.dump();
    group_->require_equal("data", data_facts_);

    const bool replaces_rank = !has_state_;
    if (replaces_rank && ctx.device().is_cuda())
        wait_for_free_memory(ctx.device(),
                             plan_memory(ctx, memory_request(config_, ctx.device(), group_->size())).total());
    const std::size_t sharers = ctx.device().is_cpu() ? static_cast<std::size_t>(environment.local_size) : 1;
    std::size_t budget = available_memory(ctx.device()) / sharers;
    if (!config_.memory_budget.empty()) {
        budget = bytes_to_plan(config_, ctx.device());
        if (!replaces_rank) choose_settings(ctx, packing, budget);  // the others have chosen
    }
    MemoryRequest request = memory_request(config_, ctx.device(), group_->size());
    request.row_ranges = packing.has_ranges();
    plan_ = plan_within(ctx, request, budget);
    try {
        runner_ = std::make_unique<StepRunner>(ctx, config_, std::move(dataset), std::move(communicator),
                                               *group_, callbacks_, on_message_);
    } catch (const OutOfMemory& error) {
        // Another process took memory that was free when the plan was made. This run's own memory is free
        // again, so the message says what would fit.
        throw Error(concat(error.what(), "; the run needs ", plan_.total(), " bytes, ",
                           what_would_fit(ctx, request, available_memory(ctx.device()))));
    }
    plan_.activations = runner_->activation_bytes();
    plan_.residuals = runner_->residual_bytes();
    plan_.optimizer = optimizer().state_bytes();
    end_ = config_.steps;
    if (!config_.time_budget.empty()) {
        clock_ = std::make_unique<RunClock>(config_, *group_);
        end_ = static_cast<std::int64_t>(setting_limits::max_steps);
    }
    check_sampling();
    first_position_ = position();
}

/// Sets what the memory budget chooses.
void Trainer::choose_settings(const Context& ctx, const Packing& packing, std::size_t budget) {
    MemoryChoice choice =
        choose_within(ctx, ctx.device(), config_, group_->size(), packing.has_ranges(), budget);
    config_ = std::move(choice.config);
    if (!choice.description.empty())
        on_message_(concat("memory-budget ", config_.memory_budget, ": chosen are ", choice.description));
}

/// Says which tokenizer the run has from its checkpoint if the setting names another one, and records
/// `bytes`. A tokenizer of a file stays the default in config.json: with init-from the default is the
/// checkpoint's own tokenizer, whose file may be gone.
void Trainer::name_first_tokenizer() {
    const std::optional<Tokenizer>& tokenizer = model().tokenizer;
    if (!tokenizer || tokenizer->kind() == tokenizer_kind_of(config_.tokenizer)) return;
    on_message_(
        concat("the checkpoint's tokenizer is used: ", tokenizer->name(), ", not ", config_.tokenizer));
    if (tokenizer->kind() != TokenizerKind::bpe) config_.tokenizer = name_of(tokenizer->kind());
}

/// What the weights' publisher says about text holds as long as the tokenizer and the chat template are the
/// same.
void Trainer::keep_imported_text(const Checkpoint& start, const std::string& source) {
    TrainConfig before;
    apply_json(before, start.config, source);
    if (model().tokenizer != tokenizer_of(start, source) || config_.chat_template != before.chat_template)
        return;
    runner_->replica().model.imported_text = imported_text_of(start, config_.model.vocabulary, source);
}

/// Refuses before the first step what every sample would refuse.
void Trainer::check_sampling() const {
    if (config_.sample_every == 0) return;
    check(model().tokenizer.has_value(), "sample-every: ", config_.sample_every,
          "; expected 0 for token files, or --tokenizer with the file of the tokenizer that made them");
    const std::vector<std::int32_t> prompt =
        model().tokenizer->encode(config_.sample_prompt, "sample-prompt",
                                  {.special_tokens = SpecialTokens::recognised, .add_special_tokens = true});
    check(!config_.model.prefix || std::ssize(prompt) <= config_.model.context,
          "sample-prompt: ", prompt.size(), " tokens with prefix; expected at most context, ",
          config_.model.context);
}

/// Records the token in the settings, so that a resumed run and `gradtile eval` divide data in the same way.
void Trainer::choose_document_token(const Dataset& dataset) {
    if (config_.document_token < 0) config_.document_token = dataset.separator;
    if (dataset.train.examples()) return;  // documents begin with each example
    const DocumentRule rule = document_rule(config_.document_token, dataset.tokenizer);
    const bool is_unknown =
        rule.kind == DocumentRule::Kind::separator && rule.token >= config_.model.vocabulary;
    if (is_unknown) return;  // check_token_ids() refuses it
    const std::int64_t count = std::min(dataset.train.size(), tokens_with_documents);
    const std::int64_t windows = ceil_div(count, config_.model.context);
    if (windows <= windows_of_one_document || !document_begins(dataset.train, rule, count).empty()) return;
    on_message_(concat("packed: documents begin ", places_of_documents(rule), "; the first ", grouped(count),
                       " training tokens, ", grouped(windows), " windows, are one document"));
}

/// Returns the packing of the run's windows. Refuses data that it does not fit.
Packing Trainer::packing_of_data(const Dataset& dataset) const {
    const DocumentKind kind = document_kind_of(dataset);
    if (kind == DocumentKind::shared_prompts) {
        check_row_ranges(config_, "completions that share a prompt");
        check(
            config_.context_parallel == 1, "context-parallel: ", config_.context_parallel,
            " with completions that share a prompt, whose mask has two ranges of rows for a key; expected 1");
    }
    return packing_for(packing_of(config_, dataset.tokenizer), kind, config_.data);
}

}  // namespace gradtile
