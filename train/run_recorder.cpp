#include <gradtile/train/run_recorder.h>

#include <algorithm>

namespace gradtile {

void RunRecorder::open(RunOutput output) {
    output_ = std::move(output);
    if (output_.metrics) wall_s_before_ = std::max(wall_s_before_, output_.metrics->wall_s());
}

void RunRecorder::restart_clock() {
    if (output_.metrics) wall_s_before_ = std::max(wall_s_before_, output_.metrics->wall_s());
    start_clock();
}

void RunRecorder::return_to(std::int64_t step, LastStep last) {
    if (output_.metrics)
        output_.metrics = std::make_unique<MetricsFile>(output_.directory->metrics_file(), step, last);
}

double RunRecorder::seconds_since_start() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

void RunRecorder::record(StepReport report) {
    report.wall_s = wall_s();
    if (output_.metrics) metrics_failures_([&] { output_.metrics->write(report); });
    for (const auto& callback : callbacks_.on_step) callback(report);
}

void RunRecorder::write_sample(std::int64_t step, std::string_view prompt, const LanguageModel& model) {
    if (!output_.metrics || !callbacks_.on_sample) return;
    sample_failures_([&] { output_.metrics->write_sample(step, prompt, callbacks_.on_sample(model)); });
}

void RunRecorder::resume_from(std::int64_t step, std::filesystem::path file) {
    saved_step_ = submitted_step_ = step;
    saved_path_ = std::move(file);
}

void RunRecorder::note_submitted(std::int64_t step, bool best) {
    submitted_step_ = step;
    if (best && output_.directory) pending_best_losses_[step] = *best_val_loss_;
}

void RunRecorder::save_part(Checkpoint part, Checkpoint main, std::vector<TensorInfo> tensors, bool best) {
    note_submitted(main.step, best);
    output_.shared->start(std::move(part), std::move(main), std::move(tensors), best);
}

void RunRecorder::save(Checkpoint checkpoint, bool best, bool is_in_host_memory) {
    note_submitted(checkpoint.step, best);
    if (!output_.writer) return;
    if (is_in_host_memory) {
        output_.writer->save_in_place(std::move(checkpoint), best);
    } else {
        output_.writer->save(checkpoint, best);
    }
}

void RunRecorder::wait_for_saves() {
    if (output_.shared) {
        output_.shared->finish();
    } else if (output_.writer) {
        output_.writer->wait();
    }
}

void RunRecorder::abandon_parts() {
    if (!output_.shared) return;
    const std::optional<SaveReport> report = output_.shared->abandon();
    if (!report) return;
    on_message_(report->message);
    if (report->best) settle_best(*report);
}

/// The save of a checkpoint with the lowest loss ended: best.h5 is this checkpoint, or still an earlier one.
void RunRecorder::settle_best(const SaveReport& report) {
    const double loss = pending_best_losses_.extract(report.step).mapped();
    if (report.is_best) {
        best_saved_val_loss_ = loss;
    } else if (best_val_loss_ == loss) {
        best_val_loss_ = best_saved_val_loss_;
    }
}

void RunRecorder::report_saves() {
    if (!output_.writer) return;
    if (output_.shared) output_.shared->advance();
    for (const SaveReport& report : output_.shared ? output_.shared->poll() : output_.writer->poll()) {
        if (!report.message.empty()) on_message_(report.message);
        save_seconds_ = report.copy_seconds + report.write_seconds;
        if (report.best) settle_best(report);
        if (report.saved) {
            saved_step_ = report.step;
            saved_path_ = report.path;
            announce_save();
        }
        try {
            if (report.saved) {
                output_.metrics->write_checkpoint_event(report.step);
            } else {
                output_.metrics->write_failed_checkpoint_event(report.step);
            }
            lacks_line_of_save_ = false;
        } catch (const Error& error) {
            lacks_line_of_save_ = true;
            on_message_(error.what());
        }
    }
}

void RunRecorder::announce_save() const {
    for (const auto& callback : callbacks_.on_save) callback();
}

}  // namespace gradtile
