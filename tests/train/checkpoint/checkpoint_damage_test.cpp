// Flipped bits and truncated files: each damaged file is refused by name, or its content is the saved
// content.
#include <gmock/gmock.h>

#include <array>
#include <random>

#include <gradtile/train/checkpoint/checkpoint.h>

#include <support/memory_file_system.h>
#include <support/resealed_checkpoint.h>
#include "checkpoint_test_support.h"

namespace gradtile {
namespace {

using test::generated_checkpoint;
using test::MemoryFileSystem;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class CheckpointDamage : public testing::Test {
  protected:
    CheckpointDamage() {
        write_checkpoint("a.h5", meant_, fs_);
        sound_ = fs_.bytes("a.h5");
    }

    // Returns true if the file was refused. Fails the test if the file was accepted with other content.
    bool refused(const std::vector<std::byte>& file, const std::string& what) {
        fs_.put("a.h5", file);
        try {
            const Checkpoint found = read_checkpoint("a.h5", {}, fs_);
            SCOPED_TRACE(what);
            test::expect_same(found, meant_);
            return false;
        } catch (const Error& error) {
            EXPECT_THAT(error.what(), StartsWith("checkpoint a.h5: ")) << what;
            EXPECT_THAT(error.what(), Not(HasSubstr("\n"))) << what;
            return true;
        }
    }

    const Context ctx_{Device::cpu(), 1};
    const Checkpoint meant_ = [this] {
        Checkpoint c = generated_checkpoint(ctx_, 7);
        c.params["large"] = randn(ctx_, {150, 1000}, DType::f32, Seed{9});  // two chunks
        return c;
    }();
    MemoryFileSystem fs_;
    std::vector<std::byte> sound_;
    std::mt19937_64 random_{1};
};

TEST_F(CheckpointDamage, TheUndamagedFileIsAccepted) {
    EXPECT_FALSE(refused(sound_, "undamaged"));
}

TEST_F(CheckpointDamage, EverySingleFlippedBitIsRefused) {
    const int rounds = test::test_rounds(200) * 10;
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::byte> file = sound_;
        // Half the changes are in the header and the first structures.
        const std::size_t position = random_() % (round % 2 == 0 ? file.size() : 8192);
        const auto bit = static_cast<int>(random_() % 8);
        file[position] ^= std::byte{1} << bit;
        EXPECT_TRUE(refused(file, concat("bit ", bit, " of byte ", position)));
    }
}

TEST_F(CheckpointDamage, EveryTruncationAndExtensionIsRefused) {
    const int rounds = test::test_rounds(50) * 10;
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::byte> file = sound_;
        const std::size_t size = random_() % file.size();
        file.resize(round % 2 == 0 ? size : file.size() - 1 - size % 4096);
        EXPECT_TRUE(refused(file, concat("cut to ", file.size(), " bytes")));
    }
    for (const std::size_t size : {0, 1, 4095, 4096, 4097}) {
        EXPECT_TRUE(refused({sound_.begin(), sound_.begin() + static_cast<std::ptrdiff_t>(size)}, "short"));
    }
    std::vector<std::byte> longer = sound_;
    longer.push_back(std::byte{0});
    EXPECT_TRUE(refused(longer, "longer"));
}

TEST_F(CheckpointDamage, LostAndMisplacedBlocksAreRefusedOrHarmless) {
    const int rounds = test::test_rounds(50) * 4;
    int refusals = 0;
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::byte> file = sound_;
        const std::size_t block = round % 2 == 0 ? 512 : 4096;
        const std::size_t blocks = file.size() / block;
        const auto position = file.begin() + static_cast<std::ptrdiff_t>(random_() % blocks * block);
        const auto other = file.begin() + static_cast<std::ptrdiff_t>(random_() % blocks * block);
        const auto length = static_cast<std::ptrdiff_t>(block);
        switch (round % 3) {
            case 0:
                std::fill_n(position, length, std::byte{0});
                break;
            case 1:
                std::copy_n(std::vector(other, other + length).begin(), length, position);
                break;
            default:
                std::swap_ranges(position, position + length, position == other ? position : other);
        }
        refusals += refused(file, concat("blocks of ", block, ", round ", round)) ? 1 : 0;
    }
    EXPECT_GT(refusals, rounds / 2);
}

// Corrects the header's checksums, so that only the tensors' checksums can detect the damage.
TEST_F(CheckpointDamage, UnderACorrectHeaderIsRefusedOrHarmless) {
    const auto body = get_little_endian<std::uint64_t>(sound_.data() + test::kUserBlockField);
    const int rounds = test::test_rounds(100) * 10;
    int refusals = 0;
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::byte> file = sound_;
        for (std::uint64_t flips = 1 + random_() % 3; flips > 0; --flips)
            file[body + random_() % (file.size() - body)] ^= std::byte{1} << static_cast<int>(random_() % 8);
        test::reseal_header(file);
        refusals += refused(file, concat("round ", round)) ? 1 : 0;
    }
    EXPECT_GT(refusals, rounds / 2);
}

// Every byte of the files of a checkpoint in parts.
TEST(CheckpointPartsDamage, EverySingleFlippedBitInAnyFileIsRefused) {
    const Context ctx(Device::cpu(), 1);
    MemoryFileSystem fs;
    const CheckpointDirectory directory("", {}, fs);
    const Checkpoint meant = generated_checkpoint(ctx, 7);
    test::save_in_parts(directory, meant, 1, 3);
    std::vector<std::string> names;
    fs.list("", names);
    ASSERT_EQ(names.size(), 4u);
    std::mt19937_64 random(1);
    const int rounds = test::test_rounds(200) * 5;
    for (const std::string& name : names) {
        const std::vector<std::byte> sound = fs.bytes(name);
        for (int round = 0; round < rounds; ++round) {
            std::vector<std::byte> file = sound;
            // Half the changes are in the header and the list of pieces.
            const std::size_t position = random() % (round % 2 == 0 ? file.size() : 4096);
            const auto bit = static_cast<int>(random() % 8);
            file[position] ^= std::byte{1} << bit;
            fs.put(name, file);
            EXPECT_THAT(test::error_of([&] { read_checkpoint(directory.path_of(7), {}, fs); }),
                        testing::AllOf(StartsWith("checkpoint step_00000007.h5: "), Not(HasSubstr("\n"))))
                << "bit " << bit << " of byte " << position << " of " << name;
        }
        for (const std::size_t size :
             {std::size_t{0}, std::size_t{127}, std::size_t{128}, sound.size() - 1, sound.size() + 1}) {
            std::vector<std::byte> file = sound;
            file.resize(size);
            fs.put(name, file);
            EXPECT_NE(test::error_of([&] { read_checkpoint(directory.path_of(7), {}, fs); }), "") << name;
        }
        fs.put(name, sound);
    }
    test::expect_same(read_checkpoint(directory.path_of(7), {}, fs), meant);
}

// Corrects all checksums, as an attacker would. The reader must return other values or refuse the file in one
// line.
TEST_F(CheckpointDamage, UnderCorrectChecksumsIsRefusedInOneLineOrRead) {
    const auto body = get_little_endian<std::uint64_t>(sound_.data() + test::kUserBlockField);
    const int rounds = test::test_rounds(100) * 40;
    int refusals = 0;
    for (int round = 0; round < rounds; ++round) {
        std::vector<std::byte> file = sound_;
        // Most changes are in the tensor list.
        const std::size_t position = random_() % (round % 4 == 0 ? file.size() : body);
        constexpr std::array<int, 6> kEdges = {0, 1, 0x7f, 0x80, 0xfe, 0xff};
        file[position] =
            static_cast<std::byte>(round % 2 == 0 ? kEdges[random_() % kEdges.size()] : random_());
        fs_.put("a.h5", test::reseal(std::move(file)));
        const auto refusal_of = [](const auto& read) -> std::string {
            try {
                read();
                return {};
            } catch (const Error& error) {
                return error.what();
            }
        };
        const std::string refusal = refusal_of([&] { read_checkpoint("a.h5", {}, fs_); });
        EXPECT_EQ(refusal_of([&] { inspect_checkpoint("a.h5", fs_); }), refusal);
        if (refusal.empty()) continue;
        EXPECT_THAT(refusal, StartsWith("checkpoint a.h5: ")) << "byte " << position;
        EXPECT_THAT(refusal, Not(HasSubstr("\n"))) << "byte " << position;
        ++refusals;
    }
    EXPECT_GT(refusals, rounds / 4);
}

}  // namespace
}  // namespace gradtile
