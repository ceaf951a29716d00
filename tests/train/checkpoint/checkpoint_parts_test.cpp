// Checkpoints whose tensors are in parts, one file for each rank: they are read like whole ones, and a
// missing, damaged or exchanged part makes the whole save unsound.
#include <gmock/gmock.h>

#include <sys/stat.h>

#include <atomic>
#include <set>
#include <thread>

#include <gradtile/train/checkpoint/checkpoint_names.h>
#include <gradtile/train/model/language_model.h>

#include <support/resealed_checkpoint.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::error_of;
using test::generated_checkpoint;
using test::MemoryFileSystem;
using test::part_of;
using test::save_in_parts;
using test::TemporaryDirectory;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr std::uint64_t kSave = 0x0123456789abcdef;

TEST(CheckpointNames, AreParsedExactly) {
    EXPECT_EQ(step_file_name(250), "step_00000250.h5");
    EXPECT_EQ(step_of_file_name("step_123456789012.h5"), 123456789012);
    EXPECT_EQ(part_file_name(250, {.save = kSave, .number = 3, .count = 12}),
              "step_00000250.part-3-of-12-0123456789abcdef.h5");
    EXPECT_TRUE(is_part_file_name("step_00000250.part-3-of-12-0123456789abcdef.h5"));
    for (const char* name :
         {"step_00000250.h5", "step_250.part-3-of-12-0123456789abcdef.h5",
          "step_00000250.part-03-of-12-0123456789abcdef.h5", "step_00000250.part-3-of-12-123456789abcdef.h5",
          "step_00000250.part-3-of-12-0123456789ABCDEF.h5", "step_00000250.part-3-of-12-0123456789abcdef.h5x",
          "step_00000250.part-3-of-12.h5", "../step_00000250.part-3-of-12-0123456789abcdef.h5",
          "step_00000250.part-3-of-12-0123456789abcdef.h5.tmp-0123456789abcdef",
          "step_99999999999999999999.part-3-of-12-0123456789abcdef.h5", ""})
        EXPECT_FALSE(is_part_file_name(name)) << name;
    for (const char* name : {"step_250.h5", "step_-0000001.h5", "step_00000250.h5x", "step_.h5", "best.h5"})
        EXPECT_EQ(step_of_file_name(name), std::nullopt) << name;
    const auto piece = parse_piece_name(piece_name("params/h.0/a", 4096));
    ASSERT_TRUE(piece.has_value());
    EXPECT_EQ(piece->tensor, "params/h.0/a");
    EXPECT_EQ(piece->begin, 4096);
    for (const char* name : {"params", "params/", "params/a/-1", "params/a/01", "params/a/1x", "params/a/+1",
                             "params/a/99999999999999999999"})
        EXPECT_FALSE(parse_piece_name(name).has_value()) << name;
}

/// Saves of small checkpoints in a memory file system.
class CheckpointInParts : public testing::Test {
  protected:
    CheckpointInParts() { fs_.make_directory("run"); }
    std::string part_name(std::int64_t number, std::int64_t count, std::int64_t step = 7,
                          std::uint64_t save = kSave) const {
        return "run/" + part_file_name(step, {.save = save, .number = number, .count = count});
    }
    std::string refusal() {
        const std::string main = directory_.path_of(7).string();
        const std::string read = error_of([&] { read_checkpoint(main, {}, fs_); });
        EXPECT_EQ(error_of([&] { inspect_checkpoint(main, fs_); }), read);
        EXPECT_EQ(error_of([&] { read_checkpoint(main, {.training_state = false}, fs_); }), read);
        EXPECT_THAT(read, AllOf(StartsWith("checkpoint run/step_00000007.h5: "), Not(HasSubstr("\n"))));
        return read;
    }
    std::vector<std::string> names() {
        std::vector<std::string> names;
        fs_.list("run", names);
        return names;
    }

    const Context ctx_{Device::cpu(), 1};
    const Checkpoint meant_ = [this] {
        Checkpoint c = generated_checkpoint(ctx_, 7);
        c.params["large"] = randn(ctx_, {150, 1000}, DType::f32, Seed{9});  // two chunks
        c.params["none"] = zeros(ctx_, {4, 0, 3}, DType::f16);
        c.optimizer["updates"] = from_host(ctx_, std::vector<std::int32_t>{3}, {1});
        return c;
    }();
    MemoryFileSystem fs_;
    const CheckpointDirectory directory_{"run", {.keep_last = 2}, fs_};
};
TEST_F(CheckpointInParts, EqualsTheWholeOneForAnyNumberOfParts) {
    fs_.make_directory("whole");
    write_checkpoint("whole/a.h5", meant_, fs_);
    const CheckpointInfo whole = inspect_checkpoint("whole/a.h5", fs_);
    for (const std::int64_t count : {1, 2, 3, 7, 100}) {
        SCOPED_TRACE(count);
        EXPECT_EQ(save_in_parts(directory_, meant_, kSave + static_cast<std::uint64_t>(count), count).problem,
                  "");
        test::expect_same(read_checkpoint(directory_.path_of(7), {}, fs_), meant_);
        const CheckpointInfo info = inspect_checkpoint(directory_.path_of(7), fs_);
        EXPECT_EQ(info.tensors, whole.tensors);
        EXPECT_EQ(info.parts, static_cast<std::size_t>(count));
        std::uint64_t bytes = 0;
        for (const std::string& name : names()) bytes += fs_.bytes("run/" + name).size();
        EXPECT_EQ(info.file_bytes, bytes);  // the parts of the save before are removed
        const Checkpoint weights = read_checkpoint(directory_.path_of(7), {.training_state = false}, fs_);
        test::expect_same(weights.params, meant_.params);
        EXPECT_THAT(weights.optimizer, IsEmpty());
    }
}

TEST_F(CheckpointInParts, IsFoundAsTheNewestOne) {
    directory_.save(generated_checkpoint(ctx_, 6));
    save_in_parts(directory_, meant_, kSave, 3);
    const auto loaded = directory_.load_newest();
    ASSERT_TRUE(loaded.checkpoint.has_value());
    EXPECT_THAT(loaded.damaged, IsEmpty());
    test::expect_same(*loaded.checkpoint, meant_);
}

TEST_F(CheckpointInParts, WithAMissingOrDamagedPartGivesWayToTheOneBefore) {
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path());
    save_in_parts(directory, generated_checkpoint(ctx_, 6), kSave, 2);
    save_in_parts(directory, meant_, kSave, 3);
    for (const std::int64_t number : {0, 1, 2}) {
        const std::filesystem::path part =
            place / part_file_name(7, {.save = kSave, .number = number, .count = 3});
        const std::vector<std::byte> sound = test::file_bytes(part);
        const auto expect_older = [&](const std::string& reason) {
            const auto loaded = directory.load_newest();
            ASSERT_TRUE(loaded.checkpoint.has_value());
            test::expect_same(*loaded.checkpoint, generated_checkpoint(ctx_, 6));
            EXPECT_THAT(
                loaded.damaged,
                ElementsAre(AllOf(HasSubstr(concat("step_00000007.h5: part ", part.filename().string())),
                                  HasSubstr(reason))));
        };
        std::filesystem::remove(part);
        expect_older("No such file or directory");
        std::vector<std::byte> damaged = sound;
        damaged[damaged.size() / 2] ^= std::byte{4};
        test::write_bytes(part, damaged);
        expect_older("damaged");
        damaged = sound;
        damaged.resize(1000);
        test::write_bytes(part, damaged);
        expect_older("1000 bytes with header checksum");
        test::write_bytes(part, {});
        expect_older("truncated: 0 bytes");
        test::write_bytes(part, sound);
    }
    test::expect_same(*directory.load_newest().checkpoint, meant_);
}

TEST_F(CheckpointInParts, RefusesSoundFilesThatAreNotItsParts) {
    save_in_parts(directory_, meant_, kSave, 2);
    const auto sound = std::array{fs_.bytes(part_name(0, 2)), fs_.bytes(part_name(1, 2))};
    const auto expect_other = [&](const std::string& name, const std::vector<std::byte>& file) {
        const std::vector<std::byte> own = fs_.bytes(name);
        fs_.put(name, file);
        EXPECT_THAT(refusal(), HasSubstr("the checkpoint lists"));
        fs_.put(name, own);
    };
    expect_other(part_name(0, 2), sound[1]);
    expect_other(part_name(1, 2), sound[0]);
    expect_other(part_name(0, 2), fs_.bytes("run/step_00000007.h5"));  // lists parts itself
    // The same part of another step, and of another run at this step.
    save_in_parts(directory_, generated_checkpoint(ctx_, 8), kSave, 2);
    expect_other(part_name(0, 2), fs_.bytes(part_name(0, 2, 8)));
    Checkpoint other = part_of(meant_, kSave, 0, 2);
    other.params[piece_name("large", 0)] = randn(ctx_, {75'000}, DType::f32, Seed{10});
    fs_.make_directory("other");
    write_checkpoint("other/a.h5", other, fs_);
    EXPECT_EQ(fs_.bytes("other/a.h5").size(), sound[0].size());
    expect_other(part_name(0, 2), fs_.bytes("other/a.h5"));
    test::expect_same(read_checkpoint(directory_.path_of(7), {}, fs_), meant_);
}

/// Parts are saved under a new name each time, so that best.h5 keeps its own when a resumed run reaches its
/// step again.
TEST_F(CheckpointInParts, OfTheBestStepOutliveALaterSaveOfTheSameStep) {
    save_in_parts(directory_, meant_, kSave, 2, /*best=*/true);
    Checkpoint again = meant_;
    again.params["large"] = randn(ctx_, {150, 1000}, DType::f32, Seed{10});
    save_in_parts(directory_, again, kSave + 1, 2);
    test::expect_same(read_checkpoint(directory_.best_path(), {}, fs_), meant_);
    test::expect_same(read_checkpoint(directory_.path_of(7), {}, fs_), again);
}

TEST_F(CheckpointInParts, AreKeptAsLongAsAMainFileListsThem) {
    const CheckpointDirectory directory("run", {.keep_last = 2, .keep_every = 4}, fs_);
    for (std::int64_t step = 1; step <= 9; ++step) {
        const bool best = step == 3;
        const Checkpoint checkpoint = generated_checkpoint(ctx_, step);
        EXPECT_EQ(step % 3 == 0 ? save_in_parts(directory, checkpoint, kSave, 1 + step % 4, best).problem
                                : directory.save(checkpoint, best).problem,
                  "");
    }
    std::set<std::string> left;
    for (const std::string& name : names()) left.insert(name);
    EXPECT_THAT(
        left, testing::UnorderedElementsAre(
                  "best.h5", "step_00000004.h5", "step_00000008.h5", "step_00000009.h5",
                  part_name(0, 4, 3).substr(4), part_name(1, 4, 3).substr(4), part_name(2, 4, 3).substr(4),
                  part_name(3, 4, 3).substr(4), part_name(0, 2, 9).substr(4), part_name(1, 2, 9).substr(4)));
    test::expect_same(read_checkpoint(directory.best_path(), {}, fs_), generated_checkpoint(ctx_, 3));
}

TEST_F(CheckpointInParts, OfUnfinishedSavesAreNotCheckpointsAndAreRemoved) {
    for (const std::int64_t number : {0, 2}) directory_.save(part_of(meant_, kSave, number, 3));
    EXPECT_TRUE(directory_.is_empty());
    EXPECT_THAT(directory_.list(), IsEmpty());
    EXPECT_FALSE(directory_.load_newest().checkpoint.has_value());
    save_in_parts(directory_, generated_checkpoint(ctx_, 6), kSave, 2);
    directory_.save(part_of(meant_, kSave, 0, 3));
    fs_.put("run/step_00000007.part-foreign.h5", {});
    directory_.remove_temporaries();
    EXPECT_THAT(names(),
                testing::UnorderedElementsAre("step_00000006.h5", part_name(0, 2, 6).substr(4),
                                              part_name(1, 2, 6).substr(4), "step_00000007.part-foreign.h5"));
}

TEST_F(CheckpointInParts, AllStayWhileAMainFileCannotBeRead) {
    save_in_parts(directory_, meant_, kSave, 2, /*best=*/true);
    fs_.put("run/best.h5", std::vector<std::byte>(1000));
    directory_.save(part_of(generated_checkpoint(ctx_, 8), kSave, 0, 2));
    directory_.remove_temporaries();
    EXPECT_EQ(names().size(), 5u);
    EXPECT_THAT(error_of([&] { directory_.remove_unlisted_parts(); }),
                HasSubstr("run/best.h5: not a gradtile checkpoint"));
    EXPECT_THAT(save_in_parts(directory_, generated_checkpoint(ctx_, 9), kSave, 2).problem,
                HasSubstr("run/best.h5: not a gradtile checkpoint"));
}

TEST_F(CheckpointInParts, IsNotCommittedUnlessTheWholeTensorsAreThere) {
    for (const std::int64_t number : {0, 1}) directory_.save(part_of(meant_, kSave, number, 2));
    const Checkpoint main = test::main_of(meant_, directory_, kSave, 2);
    const auto refusal_of = [&](const std::function<void(CheckpointParts&)>& change) {
        Checkpoint changed = main;
        change(*changed.parts);
        const std::string refusal = error_of([&] { directory_.save(changed); });
        EXPECT_FALSE(fs_.exists("run/step_00000007.h5"));
        return refusal;
    };
    const auto find = [](CheckpointParts& parts, const std::string& name) -> TensorInfo& {
        return *std::ranges::find(parts.tensors, name, &TensorInfo::name);
    };
    EXPECT_THAT(refusal_of([&](auto& p) {
                    find(p, "params/large").shape = {150, 1001};
                }),
                HasSubstr("params/large: the parts hold 150000 of 150150 elements"));
    EXPECT_THAT(refusal_of([&](auto& p) {
                    find(p, "params/large").shape = {150, 999};
                }),
                HasSubstr("params/large: the piece of 75000 elements at 75000 does not follow"));
    EXPECT_THAT(refusal_of([&](auto& p) { find(p, "params/large").dtype = DType::i32; }),
                HasSubstr("params/large: elements from 0 on are float32, expected int32"));
    EXPECT_THAT(refusal_of([&](auto& p) { find(p, "params/large").name = "params/larger"; }),
                HasSubstr("params/larger: the parts hold 0 of 150000 elements"));
    EXPECT_THAT(refusal_of([&](auto& p) { find(p, "params/large").name = "large"; }),
                HasSubstr("\"large\" cannot name a tensor"));
    EXPECT_THAT(refusal_of([&](auto& p) { p.tensors.pop_back(); }), HasSubstr("of them are listed"));
    EXPECT_THAT(refusal_of([&](auto& p) { std::swap(p.table.files[0], p.table.files[1]); }),
                HasSubstr("the checkpoint lists"));
    EXPECT_THAT(refusal_of([&](auto& p) { p.table.files.pop_back(); }),
                HasSubstr("part-0-of-1-0123456789abcdef.h5: cannot be opened"));
    Checkpoint with_tensors = main;
    with_tensors.params = meant_.params;
    EXPECT_THAT(error_of([&] { directory_.save(with_tensors); }),
                HasSubstr("its tensors are in this process and in parts"));
    EXPECT_EQ(directory_.save(main).problem, "");
    test::expect_same(read_checkpoint(directory_.path_of(7), {}, fs_), meant_);
}

/// The reader finds a file that a run then replaces, with its parts.
TEST(CheckpointPartsOnDisk, AreReadWhileARunReplacesItsOnlyCheckpoint) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place.path(), {.keep_last = 1});
    save_in_parts(directory, generated_checkpoint(ctx, 1), kSave, 2, /*best=*/true);
    std::atomic<bool> done = false;
    std::thread run([&] {
        for (std::int64_t step = 2; !done; ++step)
            save_in_parts(directory, generated_checkpoint(ctx, step), kSave, 2, /*best=*/true);
    });
    for (int i = 0; i < 50; ++i) {
        const auto loaded = directory.load_newest();
        EXPECT_TRUE(loaded.checkpoint.has_value());
        EXPECT_THAT(loaded.damaged, IsEmpty());
        EXPECT_NO_THROW(read_checkpoint(directory.best_path()));
    }
    done = true;
    run.join();
}

TEST(CheckpointPartsOnDisk, AreReadThroughALinkToTheMainFileButAreNotLinks) {
    const Context ctx;
    const TemporaryDirectory place;
    const CheckpointDirectory directory(place / "run");
    const Checkpoint meant = generated_checkpoint(ctx, 7);
    save_in_parts(directory, meant, kSave, 2);
    std::filesystem::create_symlink(directory.path_of(7), place / "latest.h5");
    test::expect_same(read_checkpoint(place / "latest.h5"), meant);
    const std::filesystem::path part =
        directory.path() / part_file_name(7, {.save = kSave, .number = 1, .count = 2});
    std::filesystem::rename(part, place / "part.h5");
    std::filesystem::create_symlink(place / "part.h5", part);
    EXPECT_THAT(error_of([&] { read_checkpoint(directory.path_of(7)); }), HasSubstr("symbolic link"));
    std::filesystem::remove(part);
    ASSERT_EQ(::mkfifo(part.c_str(), 0644), 0);
    EXPECT_THAT(error_of([&] { read_checkpoint(directory.path_of(7)); }),
                HasSubstr("part-1-of-2-0123456789abcdef.h5: is not a regular file"));
    std::filesystem::remove(part);
    std::filesystem::create_directory(part);
    EXPECT_THAT(error_of([&] { read_checkpoint(directory.path_of(7)); }), HasSubstr("is a directory"));
}

TEST(CheckpointPartsOnDisk, AreNoModels) {
    const TemporaryDirectory place;
    Checkpoint part = part_of(generated_checkpoint(Context(), 7), kSave, 1, 2);
    part.meta.set(part_number_key, 1);
    write_checkpoint(place / "part.h5", part);
    EXPECT_EQ(error_of([&] { load_checkpoint(place / "part.h5"); }),
              concat((place / "part.h5").string(),
                     ": is a part of a checkpoint; expected its main file, step_00000007.h5"));
}

/// Main files and parts with false lists and correct checksums.
class HostileParts : public CheckpointInParts {
  protected:
    HostileParts() {
        save_in_parts(directory_, meant_, kSave, 2);
        main_ = fs_.bytes("run/step_00000007.h5");
        part_ = fs_.bytes(part_name(1, 2));
    }
    /// Replaces a part, and lists it in the main file.
    std::string refusal_of_part(const std::vector<std::byte>& part) {
        fs_.put(part_name(1, 2), part);
        const PartFile listed =
            directory_.describe({.step = 7, .part = CheckpointPart{.save = kSave, .number = 1, .count = 2}});
        fs_.put("run/step_00000007.h5",
                test::with_manifest(main_, [&](CheckpointManifest& m) { m.parts->files[1] = listed; }));
        return refusal();
    }
    std::string refusal_of_piece(const std::string& name, const std::function<void(StoredObject&)>& change) {
        return refusal_of_part(test::with_manifest(part_, [&](CheckpointManifest& m) {
            change(*std::ranges::find(m.objects, name, &StoredObject::name));
        }));
    }
    std::string refusal_of_main(const std::function<void(CheckpointManifest&)>& change) {
        fs_.put("run/step_00000007.h5", test::with_manifest(main_, change));
        return refusal();
    }
    static StoredObject& find(CheckpointManifest& manifest, const std::string& name) {
        return *std::ranges::find(manifest.objects, name, &StoredObject::name);
    }

    std::vector<std::byte> main_, part_;
};

TEST_F(HostileParts, AnUnchangedMainFileIsRead) {
    fs_.put("run/step_00000007.h5", test::with_manifest(main_, [](CheckpointManifest&) {}));
    EXPECT_EQ(fs_.bytes("run/step_00000007.h5"), main_);
    test::expect_same(read_checkpoint(directory_.path_of(7), {}, fs_), meant_);
}

TEST_F(HostileParts, TablesThatDoNotFitAreRefused) {
    EXPECT_THAT(refusal_of_main([](auto& m) { m.parts->files.clear(); }), HasSubstr("a list of 0 parts"));
    EXPECT_THAT(refusal_of_main([](auto& m) { m.parts->files.resize(100'000); }),
                HasSubstr("part step_00000007.part-0-of-100000-0123456789abcdef.h5: cannot be opened"));
    EXPECT_THAT(refusal_of_main([](auto& m) { m.parts->save += 1; }), HasSubstr("cannot be opened"));
    EXPECT_THAT(refusal_of_main([](auto& m) { m.parts->files[1].bytes += 1; }),
                HasSubstr("the checkpoint lists"));
    EXPECT_THAT(refusal_of_main([](auto& m) { m.parts->files[1].header_crc32c ^= 1; }),
                HasSubstr("the checkpoint lists"));
    // The count of a table without parts is its last number.
    const auto with_count = [&](std::uint32_t count) {
        std::vector<std::byte> file =
            test::with_manifest(main_, [](CheckpointManifest& m) { m.parts->files.clear(); });
        const auto bytes = get_little_endian<std::uint64_t>(file.data() + test::kManifestBytesField);
        put_little_endian(file.data() + test::kHeaderEnd + bytes - 4, count);
        fs_.put("run/step_00000007.h5", test::reseal(std::move(file)));
        return refusal();
    };
    EXPECT_THAT(with_count(1), HasSubstr("damaged: a list of 1 parts in 0 bytes"));
    EXPECT_THAT(with_count(0xffffffff), HasSubstr("damaged: a list of 4294967295 parts in 0 bytes"));
}

TEST_F(HostileParts, TensorsThatThePartsDoNotHoldAreRefusedBeforeMemoryIsTaken) {
    EXPECT_THAT(refusal_of_main([](auto& m) {
                    find(m, "params/large").shape = {1'000'000'000, 1000};
                }),
                HasSubstr("params/large: the parts hold 150000 of 1000000000000 elements"));
    EXPECT_THAT(refusal_of_main([](auto& m) { find(m, "params/large").shape = {10}; }),
                HasSubstr("params/large: the piece of 75000 elements at 0 does not follow"));
    EXPECT_THAT(refusal_of_main([](auto& m) { find(m, "params/large").dtype = DType::f64; }),
                HasSubstr("params/large: elements from 0 on are float32"));
    EXPECT_THAT(refusal_of_main([](auto& m) { find(m, "params/large").crc32c ^= 1; }),
                HasSubstr("params/large: damaged: the checksum of its pieces"));
    EXPECT_THAT(refusal_of_main([](auto& m) {
                    find(m, "params/large").extents = {{100'000, 16}};
                }),
                HasSubstr("params/large"));
    EXPECT_THAT(refusal_of_main([](auto& m) {
                    std::erase_if(m.objects, [](const auto& o) { return o.name == "params/large"; });
                }),
                HasSubstr("of them are listed"));
}

TEST_F(HostileParts, FalsePiecesAreRefused) {
    const std::string piece = "params/large/75000";
    EXPECT_THAT(refusal_of_piece(piece, [](auto& o) { o.name = "params/large/75001"; }),
                HasSubstr("params/large: the piece of 75000 elements at 75001 does not follow"));
    EXPECT_THAT(refusal_of_piece(piece, [](auto& o) { o.name = "params/large/74999"; }),
                HasSubstr("params/large: the piece of 75000 elements at 74999 does not follow"));
    EXPECT_THAT(refusal_of_piece(piece, [](auto& o) { o.name = "params/large/9223372036854775807"; }),
                HasSubstr("does not follow"));
    EXPECT_THAT(refusal_of_piece(piece, [](auto& o) { o.name = "params/large/7500x"; }),
                HasSubstr("is not a piece of a tensor"));
    EXPECT_THAT(refusal_of_piece(piece, [](auto& o) { o.name = "params/larger/0"; }),
                HasSubstr("params/large: the parts hold 75000 of 150000 elements"));
    EXPECT_THAT(refusal_of_piece(piece,
                                 [](auto& o) {
                                     o.shape = {75, 1000};
                                 }),
                HasSubstr("is not a piece of a tensor"));
    EXPECT_THAT(refusal_of_piece(piece, [](auto& o) { o.dtype = DType::i32; }),
                HasSubstr("elements from 75000 on are int32, expected float32"));
}

TEST_F(HostileParts, PartsOfPartsAndOfOtherStepsAreRefused) {
    EXPECT_THAT(refusal_of_part(main_), HasSubstr("has parts itself"));
    std::vector<std::byte> later = part_;
    put_little_endian(later.data() + test::kStepField, std::int64_t{8});
    EXPECT_THAT(refusal_of_part(test::reseal(std::move(later))), HasSubstr("holds step 8"));
}

}  // namespace
}  // namespace gradtile
