// Security of the control connection: programs without the key at rank 0's port, with or without knowledge of
// the protocol, and an attacker who changes messages between two processes.
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include <gmock/gmock.h>

#include "forked_ranks.h"

#include <gradtile/train/parallel/internal/control_hub.h>
#include <gradtile/train/parallel/internal/start_deadline.h>
#include <gradtile/train/parallel/run_key.h>

namespace gradtile::test {
namespace {

using testing::HasSubstr;

SteadyTime within(seconds time) {
    return SteadyClock::now() + time;
}

/// A connection to a run's port that sends arbitrary bytes.
class RawConnection {
  public:
    explicit RawConnection(int port)
        : socket_(connect_to_one_of({{"127.0.0.1", port}}, within(seconds(60))).socket) {}
    explicit RawConnection(Descriptor socket) : socket_(std::move(socket)) {}

    void send(std::string_view bytes) const {
        static_cast<void>(!::send(*socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL));
    }
    /// Reads up to `bytes` bytes; fewer when the connection ends.
    std::string receive(std::size_t bytes) const {
        std::string all;
        const SteadyTime deadline = within(seconds(60));
        while (all.size() < bytes && SteadyClock::now() < deadline) {
            std::array<char, 4096> part;
            const ssize_t got = ::recv(*socket_, part.data(), std::min(part.size(), bytes - all.size()), 0);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
            if (got > 0) all.append(part.data(), static_cast<std::size_t>(got));
            if (got < 0) std::this_thread::sleep_for(milliseconds(1));
        }
        return all;
    }
    template <class T>
    T receive() const {
        T message{};
        const std::string bytes = receive(sizeof message);
        check(bytes.size() == sizeof message, "the connection ended");
        std::memcpy(&message, bytes.data(), bytes.size());
        return message;
    }
    bool is_closed() const { return receive(1).empty(); }
    Descriptor& socket() { return socket_; }

  private:
    Descriptor socket_;
};

/// Rank 0's hub, without the rest of rank 0's process.
struct Hub {
    explicit Hub(int size) {
        auto [own, hub_end] = connected_pair();
        const SessionKeys keys{random_digest(), random_digest()};
        stream.emplace(std::move(own), keys, 4096);
        Listener listener = listen_at("127.0.0.1", 0, within(seconds(5)));
        port = listener.port;
        hub = std::make_unique<ControlHub>(
            std::move(listener), MessageStream(std::move(hub_end), keys.mirrored(), 4096),
            ControlHub::Options{.size = size, .timeout = 60.0, .version = "1", .key = key});
    }
    /// Connects as a process with `its_key`. Returns "accepted", "closed" or the reason for the refusal.
    std::string connect(const Identity& identity, const std::string& its_key) {
        Descriptor socket = connect_to_one_of({{"127.0.0.1", port}}, within(seconds(60))).socket;
        try {
            const auto keys = authenticate_to_root(
                socket, "the address", identity, [&] { return its_key; }, within(seconds(60)));
            if (keys) admitted.emplace_back(std::move(socket), *keys, 4096);
            return keys ? "accepted" : "closed";
        } catch (const Error& error) {
            return error.what();
        }
    }
    /// The next message to rank 0 that is not a heartbeat.
    std::optional<Message> next_of_own() {
        const SteadyTime deadline = within(seconds(60));
        while (SteadyClock::now() < deadline && stream->flush() && stream->receive()) {
            while (auto message = stream->next())
                if (message->kind != Message::Kind::heartbeat) return message;
            std::this_thread::sleep_for(milliseconds(1));
        }
        return std::nullopt;
    }

    std::string key = random_key();
    int port = 0;
    std::optional<MessageStream> stream;
    std::vector<MessageStream> admitted;
    std::unique_ptr<ControlHub> hub;
};

TEST(ControlSecurity, AdmitsAProcessWithTheKey) {
    Hub hub(3);
    EXPECT_EQ(hub.connect({.rank = 2, .size = 3, .version = "1"}, hub.key), "accepted");
    EXPECT_EQ(hub.connect({.rank = 1, .size = 3, .version = "1"}, hub.key), "accepted");
    EXPECT_EQ(hub.next_of_own()->kind, Message::Kind::all_connected);
}

TEST(ControlSecurity, RefusalNamesAWrongVersionWorldSizeOrRank) {
    Hub hub(3);
    EXPECT_EQ(hub.connect({.rank = 1, .size = 3, .version = "9.9"}, hub.key),
              "rank 0 refused this process: it is gradtile 9.9, rank 0 is gradtile 1");
    EXPECT_EQ(hub.connect({.rank = 1, .size = 4, .version = "1"}, hub.key),
              "rank 0 refused this process: it expects 4 processes, rank 0 expects 3");
    EXPECT_EQ(hub.connect({.rank = 3, .size = 3, .version = "1"}, hub.key),
              "rank 0 refused this process: there is no rank 3 in a world of 3");
    EXPECT_EQ(hub.connect({.rank = 0, .size = 3, .version = "1"}, hub.key),
              "rank 0 refused this process: another process is connected as rank 0 already");
}

TEST(ControlSecurity, RefusesAProcessWithoutTheKey) {
    Hub hub(2);
    const Identity missing{.rank = 1, .size = 2, .version = "1"};
    EXPECT_EQ(
        hub.connect(missing, random_key()),
        "rank 0 at the address has another key than this process; expected the same GRADTILE_RUN_KEY in "
        "every process, and no other run there");
    EXPECT_THAT(hub.connect(missing, hub.key.substr(1)), HasSubstr("another key"));
    const RawConnection guesser(hub.port);
    guesser.send(wire_bytes(make_greeting(missing)));
    guesser.receive<Challenge>();
    guesser.send(wire_bytes(Proof{}));
    const auto verdict = guesser.receive<Verdict>();
    EXPECT_EQ(verdict.kind, Verdict::Kind::wrong_key);
    EXPECT_EQ(verdict.code, Digest{}) << "rank 0 computes nothing for a process without the key";
    EXPECT_TRUE(guesser.is_closed());
    EXPECT_EQ(hub.connect(missing, hub.key), "accepted");
}

TEST(ControlSecurity, RefusesAReplayedHandshake) {
    Hub hub(3);
    const Greeting greeting = make_greeting({.rank = 1, .size = 3, .version = "1"});
    const RawConnection genuine(hub.port);
    genuine.send(wire_bytes(greeting));
    const Handshake handshake(hub.key, greeting, genuine.receive<Challenge>());
    const Proof proof{handshake.proof()};
    genuine.send(wire_bytes(proof));
    EXPECT_EQ(genuine.receive<Verdict>().kind, Verdict::Kind::accepted);
    const RawConnection replaying(hub.port);
    replaying.send(wire_bytes(greeting));
    replaying.send(wire_bytes(proof));
    replaying.receive<Challenge>();
    EXPECT_EQ(replaying.receive<Verdict>().kind, Verdict::Kind::wrong_key);
}

/// A false rank 0 sends either the code that it has received from the process, or a verdict from an earlier
/// connection.
TEST(ControlSecurity, ProcessRefusesAFalseRankZero) {
    const std::string key = random_key();
    const Greeting greeting = make_greeting({.rank = 1, .size = 2, .version = "1"});
    const Verdict old = Handshake(key, greeting, make_challenge()).verdict(Verdict::Kind::accepted);
    for (const bool reflects : {true, false}) {
        auto [own, other] = connected_pair();
        std::thread impostor([&reflects, &old, connection = RawConnection(std::move(other))] {
            connection.receive<Greeting>();
            connection.send(wire_bytes(make_challenge()));
            Verdict verdict = old;
            const auto proof = connection.receive<Proof>();
            if (reflects) verdict.code = proof.code;
            connection.send(wire_bytes(verdict));
        });
        EXPECT_THROW(authenticate_to_root(
                         own, "here", {.rank = 1, .size = 2, .version = "1"}, [&] { return key; },
                         within(seconds(60))),
                     Error);
        impostor.join();
    }
}

TEST(ControlSecurity, NamesAnotherProgramAtRankZerosPort) {
    for (const bool is_silent : {false, true}) {
        auto [own, other] = connected_pair();
        const RawConnection program(std::move(other));
        if (!is_silent) program.send(std::string(4096, 'x'));
        try {
            authenticate_to_root(
                own, "node0 port 1", {}, [] { return std::string(); },
                SteadyClock::now() + milliseconds(300));
            FAIL() << "the handshake succeeded";
        } catch (const Error& error) {
            EXPECT_EQ(
                error.what(),
                std::string(is_silent ? "rank 0 does not answer at node0 port 1: it accepted the connection "
                                        "and sent nothing"
                                      : "the program that answers at node0 port 1 is not rank 0 of this "
                                        "gradtile; is it another program, or another version of gradtile?"));
        }
    }
}

std::string nested_cbor_arrays(std::size_t levels) {
    const auto length = static_cast<std::uint32_t>(levels);
    return "GTC1" + std::string(reinterpret_cast<const char*>(&length), 4) + std::string(levels, '\x81');
}

TEST(ControlSecurity, InvalidConnectionsDoNotDisturbTheRun) {
    ForkedRanks ranks(3, 60.0);
    const auto body = [&](ProcessGroup& group) {
        ranks.wait_for_mark(0, "connections made");
        for (int i = 0; i < 20; ++i) group.all_gather("x");
        group.leave();
    };
    ranks.start(0, body);
    std::mt19937 random(7);
    std::vector<std::unique_ptr<RawConnection>> connections;
    const auto connect = [&](std::string_view bytes) {
        connections.push_back(std::make_unique<RawConnection>(ranks.port()));
        connections.back()->send(bytes);
    };
    const auto connect_all = [&] {
        const Greeting greeting = make_greeting({.rank = 1, .size = 3, .version = "1"});
        const std::string hello(wire_bytes(greeting));
        connect("");
        connect("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        connect("GT");
        connect(hello.substr(0, hello.size() / 2));
        connect(hello);
        connect(hello + hello + hello + hello);
        connect(hello + std::string(sizeof(Proof), '\0'));
        connect(hello + std::string(3'000'000, '\xff'));
        connect(nested_cbor_arrays(50'000));
        connect(std::string(3'000'000, 'x'));
        std::string noise(1000, ' ');
        for (char& c : noise) c = static_cast<char>(random());
        connect(noise);
        connect(hello.substr(0, 8) + noise);
        for (int i = 0; i < 200; ++i) connect(i % 2 == 0 ? "" : hello);
    };
    connect_all();
    ranks.start(1, body);
    connect_all();
    ranks.start(2, body);
    ranks.wait_for_mark_of_all("connected");
    connect_all();
    ranks.set_mark(0, "connections made");
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < 3; ++rank) EXPECT_EQ(exits[rank].exit_code, 0) << exits[rank].output;
}

/// A process that opens connections without a pause until it is killed.
class FloodingProcess {
  public:
    explicit FloodingProcess(int port) : process_(::fork()) {
        check(process_ >= 0, "cannot fork");
        if (process_ > 0) return;
        std::vector<RawConnection> held;
        while (true) {
            try {
                held.emplace_back(connect_to_one_of({{"127.0.0.1", port}}, SteadyClock::now()).socket);
            } catch (const Error&) {  // the exchange fails because rank 0 has ended
            }
            if (held.size() == 200) held.clear();
        }
    }
    ~FloodingProcess() {
        ::kill(process_, SIGKILL);
        ::waitpid(process_, nullptr, 0);
    }
    FloodingProcess(const FloodingProcess&) = delete;
    FloodingProcess& operator=(const FloodingProcess&) = delete;

  private:
    pid_t process_;
};

TEST(ControlSecurity, ProcessesConnectDuringAConnectionFlood) {
    ForkedRanks ranks(4, 60.0);
    const auto meet = [&](ProcessGroup& group) { group.leave(); };
    ranks.start(0, meet);
    { const RawConnection first(ranks.port()); }  // waits until rank 0 listens
    const FloodingProcess one(ranks.port()), another(ranks.port());
    for (const int rank : {1, 2, 3}) ranks.start(rank, meet);
    const std::vector<Exit> exits = ranks.exits();
    for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(exits[rank].exit_code, 0) << exits[rank].output;
}

TEST(ControlSecurity, DropsTheOldestSilentConnectionWhenThereAreTooMany) {
    Hub hub(2);
    std::vector<std::unique_ptr<RawConnection>> connections;
    const auto start = SteadyClock::now();
    for (int i = 0; i < 100; ++i) connections.push_back(std::make_unique<RawConnection>(hub.port));
    EXPECT_TRUE(connections.front()->is_closed());
    EXPECT_LT(SteadyClock::now() - start, seconds(5)) << "dropped only at the handshake's time limit";
    EXPECT_EQ(hub.connect({.rank = 1, .size = 2, .version = "1"}, hub.key), "accepted");
}

TEST(ControlSecurity, DropsASilentConnectionAfterTheHandshakeTime) {
    const Hub hub(2);
    const RawConnection silent(hub.port);
    EXPECT_TRUE(silent.is_closed());
}

// ---- Messages after the handshake ----

/// A MessageStream that receives, and the socket at the other end of its connection, through which the test
/// sends arbitrary bytes like an attacker.
struct Channel {
    Channel() {
        auto [a, b] = connected_pair();
        wire.emplace(std::move(a));
        receiver.emplace(std::move(b), keys.mirrored(), 1000);
    }
    /// The bytes that a sender with the keys writes.
    std::string frames_of(const std::vector<Message>& messages) const {
        auto [a, b] = connected_pair();
        MessageStream sender(std::move(a), keys, 1000);
        for (const Message& message : messages) sender.send(message);
        check(sender.flush(), "cannot send");
        std::string frames;
        const RawConnection reader(std::move(b));
        { const MessageStream closed = std::move(sender); }
        return reader.receive(1 << 20);
    }
    std::string frame(std::uint64_t sequence, const std::string& fields) const {
        std::string text(16, '\0');
        const std::uint64_t bytes = fields.size();
        std::memcpy(text.data(), &sequence, 8);
        std::memcpy(text.data() + 8, &bytes, 8);
        text += fields;
        return text + std::string(bytes_of(authentication_code(bytes_of(keys.to_send), text)));
    }
    std::string refusal(const std::string& bytes) {
        wire->send(bytes);
        receiver->receive();
        try {
            while (receiver->next()) ++received;
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }

    const SessionKeys keys{random_digest(), random_digest()};
    std::optional<RawConnection> wire;
    std::optional<MessageStream> receiver;
    int received = 0;
};

const Message some_message = {.rank = 3, .count = 4, .step = 5, .text = "text", .texts = {"a", "", "b"}};

TEST(ControlSecurity, MessagesArriveAsTheyWereSent) {
    Channel channel;
    const std::string frames = channel.frames_of({some_message, some_message});
    channel.wire->send(frames);
    channel.receiver->receive();
    channel.receiver->next();
    const auto message = channel.receiver->next();
    ASSERT_TRUE(message.has_value());
    EXPECT_EQ(message->rank, 3);
    EXPECT_EQ(message->count, 4);
    EXPECT_EQ(message->step, 5);
    EXPECT_EQ(message->text, "text");
    EXPECT_EQ(message->texts, some_message.texts);
}

TEST(ControlSecurity, DetectsEveryChangedBitOfAMessage) {
    const std::size_t bits = 8 * Channel().frames_of({some_message}).size();
    for (std::size_t bit = 0; bit < bits; ++bit) {
        Channel channel;
        std::string frame = channel.frames_of({some_message, some_message});
        frame[bit / 8] = static_cast<char>(frame[bit / 8] ^ (1 << bit % 8));
        // A changed length may announce more bytes than exist; no message is returned then, either.
        channel.refusal(frame);
        EXPECT_EQ(channel.received, 0) << "bit " << bit;
    }
}

TEST(ControlSecurity, RefusesReplayedReorderedAndReflectedMessages) {
    const auto in_parts = [](const Channel& channel) {
        const std::string both = channel.frames_of({some_message, some_message});
        return std::pair{both.substr(0, both.size() / 2), both.substr(both.size() / 2)};
    };
    Channel replayed;
    const auto [first, second] = in_parts(replayed);
    EXPECT_EQ(replayed.refusal(first), "");
    EXPECT_EQ(replayed.refusal(first), "a message out of sequence");
    Channel reordered;
    EXPECT_EQ(reordered.refusal(in_parts(reordered).second), "a message out of sequence");
    Channel reflected;
    auto [a, b] = connected_pair();
    MessageStream same_end(std::move(a), reflected.keys.mirrored(), 1000);
    same_end.send(some_message);
    same_end.flush();
    { const MessageStream closed = std::move(same_end); }
    EXPECT_EQ(reflected.refusal(RawConnection(std::move(b)).receive(1 << 20)),
              "a message with a wrong authentication code");
}

TEST(ControlSecurity, RefusesMalformedMessages) {
    EXPECT_EQ(Channel().refusal(std::string(8, '\0') + std::string(8, '\xff')),
              "a message of 18446744073709551615 bytes; expected at most 1000");
    const auto refusal = [](const std::string& fields) {
        Channel channel;
        return channel.refusal(channel.frame(0, fields));
    };
    const std::string numbers(1 + 3 * 8 + 8, '\0'), none(4, '\0'), most(4, '\xff');
    EXPECT_EQ(refusal(numbers + none + none), "");
    EXPECT_EQ(refusal(""), "a malformed message");
    EXPECT_EQ(refusal(numbers), "a malformed message");
    EXPECT_EQ(refusal(numbers + most), "a malformed message");
    EXPECT_EQ(refusal(numbers + none + most + std::string(900, '\0')), "a malformed message");
    EXPECT_EQ(refusal(numbers + none + none + "x"), "a malformed message");
    EXPECT_EQ(refusal("\x7f" + numbers.substr(1) + none + none), "a message of unknown kind");
    EXPECT_EQ(refusal(std::string(900, '\x81')), "a message of unknown kind");
}

// ---- Keys ----

TEST(RunKey, IsReadableByThisUserOnly) {
    const int port = test::free_port();
    const std::string path = KeyFile::path(port), key = random_key();
    EXPECT_EQ(key.size(), 64u);
    EXPECT_NE(key, random_key());
    {
        const KeyFile former(port, random_key()), file(port, key);
        EXPECT_EQ(KeyFile::read(port), key);
        struct stat found {};
        ASSERT_EQ(::stat(path.c_str(), &found), 0);
        EXPECT_EQ(found.st_mode & 0777, 0600u);
        ASSERT_EQ(::chmod(path.c_str(), 0640), 0);
        EXPECT_THROW(KeyFile::read(port), Error);
        ASSERT_EQ(::unlink(path.c_str()), 0);
        ASSERT_EQ(::symlink("/etc/hostname", path.c_str()), 0);
        EXPECT_THROW(KeyFile::read(port), Error);
        ASSERT_EQ(::unlink(path.c_str()), 0);
        std::ofstream(path) << "short";
        ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
        EXPECT_THROW(KeyFile::read(port), Error);
    }
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_THROW(KeyFile::read(port), Error);
}

/// Another user may create the directory first, or a link in its place.
TEST(RunKey, RefusesADirectoryOfAnotherUser) {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can be two users";
    const uid_t user = 60'000 + static_cast<uid_t>(::getpid() % 5000);
    const std::string directory = concat("/tmp/gradtile-", user);
    const auto refusal = [&] {
        std::string output;
        EXPECT_EQ(::seteuid(user), 0);
        try {
            const KeyFile file(1, random_key());
        } catch (const Error& error) {
            output = error.what();
        }
        EXPECT_EQ(::seteuid(0), 0);
        return output;
    };
    ASSERT_TRUE(std::filesystem::create_directory(directory));
    EXPECT_THAT(refusal(), HasSubstr(directory));  // the directory belongs to root
    std::filesystem::remove(directory);
    ASSERT_EQ(::symlink("/tmp", directory.c_str()), 0);
    EXPECT_THAT(refusal(), HasSubstr(directory));
    std::filesystem::remove(directory);
    ASSERT_TRUE(std::filesystem::create_directory(directory));
    ASSERT_EQ(::chown(directory.c_str(), user, 0), 0);
    ASSERT_EQ(::chmod(directory.c_str(), 0770), 0);
    EXPECT_THAT(refusal(), HasSubstr(directory));
    ASSERT_EQ(::chmod(directory.c_str(), 0700), 0);
    EXPECT_EQ(refusal(), "");
    std::filesystem::remove_all(directory);
}

TEST(RunKey, RefusesKeysThatAreTooShortTooLongOrUnprintable) {
    check_run_key(random_key());
    for (const std::string& key : {std::string("secret"), std::string(1025, 'x'), std::string(64, '\n')})
        EXPECT_THROW(check_run_key(key), Error);
}

TEST(Listener, ListensOnTheGivenAddressOnly) {
    EXPECT_TRUE(is_loopback("localhost") && is_loopback("127.0.1.1") && is_loopback("::1"));
    EXPECT_FALSE(is_loopback("10.0.0.1") || is_loopback("node0") || is_loopback("") || is_loopback("::"));
    for (const std::string& address : local_addresses()) {
        const bool is_number = address.find_first_not_of("0123456789.") == std::string::npos;
        if (!is_number) continue;
        const Listener at_one = listen_at(address, 0, within(seconds(5)));
        EXPECT_NO_THROW(connect_to_one_of({{address, at_one.port}}, within(seconds(5))));
        EXPECT_THROW(connect_to_one_of({{"127.0.0.1", at_one.port}}, SteadyClock::now()), Error);
        const Listener at_home = listen_at("127.0.0.1", 0, within(seconds(5)));
        EXPECT_THROW(connect_to_one_of({{address, at_home.port}}, SteadyClock::now()), Error);
    }
}

TEST(StartDeadline, ReportsTheCurrentWaitAtTheDeadline) {
    std::atomic<int> calls = 0;
    std::string reported;
    {
        StartDeadline deadline(within(seconds(2)), [&](const std::string& waiting_for) {
            reported = waiting_for;
            ++calls;
        });
        deadline.set_waiting_for("the first");
        deadline.set_waiting_for("the second");
        const SteadyTime end = within(seconds(60));
        while (calls == 0 && SteadyClock::now() < end) std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(reported, "the second");
    {
        const StartDeadline in_time(within(seconds(600)), [&](const std::string&) { ++calls; });
    }
    EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace gradtile::test
