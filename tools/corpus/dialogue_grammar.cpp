#include <gradtile/tools/corpus/grammar.h>

namespace gradtile {

// Most rules are a question with its answer, on two lines. Facts that the user told (a name, a thing and its
// colour) and the conversation's animal are grammar attributes, so an answer can depend on earlier lines.
constexpr std::string_view dialogue_grammar_notation = R"(
# ---- What they talk about ----

name(Tom) =
    | Tom | Lily | Anna | Ben | Clara | Max | Nora | Finn | Rosa | Jack | Mia | Oscar | Ella | Sam | Ivy | Hugo
    | Ruby | Leo | Zoe | Theo | Paul | Emma | Lucas | David | Sarah | Kate | Peter | Alice | Bob | Carol | Frank
    | Grace | Henry | Julia | Karl | Laura | Oliver | Quinn | Simon | Tina | Ursula | Victor | Wendy | Yara

animal(fox/a/home/food/colour/sound) =
    | fox/a fox/in a den in the forest/mice and berries/red/barks
    | owl/an owl/in an old tree/mice/brown/hoots
    | cow/a cow/on a farm/grass/black and white/moos
    | duck/a duck/on the lake/bread and snails/green/quacks
    | bear/a bear/in a cave/honey and fish/brown/growls
    | frog/a frog/in the pond/flies/green/croaks
    | horse/a horse/in a stable/hay/brown/neighs
    | sheep/a sheep/on the meadow/grass/white/bleats
    | mouse/a mouse/under the floor/cheese/grey/squeaks
    | lion/a lion/in the grassland/meat/yellow/roars
    | bee/a bee/in a hive/nectar/yellow and black/buzzes
    | wolf/a wolf/in the mountains/meat/grey/howls

object(kite) =
    | kite | lantern | drum | boat | whistle | scarf | bell | basket | book | hat | mirror | flute | blanket | teapot
    | clock | spoon | ball | bicycle | guitar | lamp

shade(red) = | red | blue | green | yellow | silver | golden | white | black | purple | grey | brown | pink

number(one/next) =
    | one/two | two/three | three/four | four/five | five/six | six/seven | seven/eight | eight/nine | nine/ten
    | ten/eleven | eleven/twelve | twelve/thirteen

# ---- Small words of the user ----

stop = | 2: .\n | \n | !\n
ask = | 3: ?\n | \n
hello = | 2: Hello | hello | 2: Hi | hi | Hey | hey | Good morning | Good evening

# ---- A conversation ----

dialogue =
    | 5: {hello}{greeting}{acquaintance}
    | 3: {acquaintance_at_once}
acquaintance = | 4: {naming}{talk} | {strangers}
acquaintance_at_once = | 2: {naming}{talk} | {strangers}
greeting =
    | 2: {stop}{welcome}
    | , who are you{ask}{introduction} What is your name?\n
    | , how are you{ask}I am fine, thank you. What is your name?\n
welcome = | Hello! What is your name?\n | Hi there! Who are you?\n | Good to see you! What is your name?\n
introduction = | I am Robin. | My name is Robin.
naming =
    | 2: My name is {hero=name}{stop}{pleased}
    | 2: I am {hero=name}{stop}{pleased}
    | I'm {hero=name}{stop}{pleased}
    | my name is {hero=name}{stop}{pleased}
    | i am {hero=name}{stop}{pleased}
    | Call me {hero=name}{stop}{pleased}
pleased =
    | 2: Nice to meet you, {hero}! {offer}\n
    | Hello, {hero}! {offer}\n
    | What a lovely name, {hero}! {offer}\n
offer = | I am Robin. | What can I do for you? | What would you like to talk about?

talk =
    | 3: {beasts}{after_beasts}
    | 3: {thing}{after_thing}
    | {counting}{after_counting}
    | {weather}{after_counting}
    | {own_name}{after_counting}
    | {their_name}{after_counting}
after_beasts =
    | 2: {thing}{recalls}
    | {their_name}{thing}{recall_thing}{bye}
    | {counting}{thing}{recalls}
    | {weather}{their_name}{bye}
after_thing =
    | 2: {beasts}{recalls}
    | {recall_thing}{beasts}{recall_name_bye}
    | {counting}{recalls}
    | {their_name}{beasts}{recall_thing}{bye}
after_counting =
    | 2: {thing}{recalls}
    | 2: {beasts}{recall_name_bye}
recalls =
    | 2: {recall_thing}{recall_name_bye}
    | 2: {their_name}{recall_thing}{bye}
recall_name_bye = | 3: {their_name}{bye} | {bye}

strangers =
    | 2: {beasts}{stranger_thing}
    | {thing}{beasts}{recall_thing}{unknown_name}{bye_stranger}
    | {counting}{unknown_name}{beasts}{bye_stranger}
stranger_thing =
    | {unknown_name}{bye_stranger}
    | {thing}{recall_thing}{bye_stranger}

# ---- Questions and answers ----

their_name =
    | 3: What is my name{ask}{your_name}
    | what is my name{ask}{your_name}
    | Do you remember my name{ask}Of course! {your_name}
    | Who am I{ask}You are {hero}.\n
your_name = | 3: Your name is {hero}.\n | You are {hero}.\n
unknown_name =
    | 2: What is my name{ask}{not_told}
    | what is my name{ask}{not_told}
    | Do you know my name{ask}No. {not_told}
not_told = | You have not told me your name.\n | I do not know your name yet.\n
own_name =
    | 2: What is your name{ask}My name is Robin.\n
    | what is your name{ask}My name is Robin.\n
    | Who are you{ask}I am Robin.\n
    | Are you a robot{ask}I am a very small language model.\n
weather =
    | How is the weather{ask}The sun is shining, and I hope it stays like that.\n
    | Will it rain today{ask}I cannot look out of the window.\n
counting =
    | 2: What comes after {count=number}{ask}{after_it}
    | what comes after {count=number}{ask}{after_it}
    | Count on from {count=number}{stop}{after_it}
    | Which number follows {count=number}{ask}{after_it}
after_it = | After {count} comes {count.next}.\n | That is {count.next}.\n

beasts =
    | 3: Where does {beast=animal.a} live{ask}{beast.A} lives {beast.home}.\n{more_food}
    | where does {beast=animal.a} live{ask}{beast.A} lives {beast.home}.\n{more_food}
    | 2: What does {beast=animal.a} eat{ask}{beast.A} eats {beast.food}.\n{more_home}
    | 2: What colour is {beast=animal.a}{ask}{beast.A} is {beast.colour}.\n{more_food}
    | 2: What sound does {beast=animal.a} make{ask}{beast.A} {beast.sound}.\n{more_home}
    | what does {beast=animal.a} eat{ask}{beast.A} eats {beast.food}.\n{more_home}
    | what colour is {beast=animal.a}{ask}{beast.A} is {beast.colour}.\n{more_food}
    | what sound does {beast=animal.a} make{ask}{beast.A} {beast.sound}.\n{more_home}
    | Tell me about the {beast=animal}{stop}{beast.A} is {beast.colour} and lives {beast.home}.\n{more_food}
    | Do you like the {beast=animal}{ask}Yes, because it {beast.sound} so nicely.\n{more_food}
more_food =
    | 2: And what does it eat{ask}It eats {beast.food}.\n
    | What does it eat{ask}It eats {beast.food}.\n
    | Which sound does it make{ask}It {beast.sound}.\n
    | Thank you{stop}You are welcome.\n
more_home =
    | 2: And where does it live{ask}It lives {beast.home}.\n
    | Where does it live{ask}It lives {beast.home}.\n
    | What colour is it{ask}It is {beast.colour}.\n
    | Thank you{stop}You are welcome.\n

thing =
    | 2: I have a {colour=shade} {toy=object}{stop}{admire}
    | My {toy=object} is {colour=shade}{stop}{admire}
    | Yesterday I found a {colour=shade} {toy=object}{stop}{admire}
    | Look at my {colour=shade} {toy=object}{stop}{admire}
admire =
    | 2: A {colour} {toy}! That sounds nice.\n
    | I would like to have a {colour} {toy}, too.\n
    | I like {colour} things, and a {toy} is useful.\n
recall_thing =
    | 2: What colour is my {toy}{ask}{your_colour}
    | what colour is my {toy}{ask}{your_colour}
    | Do you remember the colour of my {toy}{ask}Yes. {your_colour}
    | Which thing do I have{ask}You have a {colour} {toy}.\n
your_colour = | 2: Your {toy} is {colour}.\n | It is {colour}.\n

bye =
    | 2: Goodbye{stop}{farewell}
    | Bye{stop}{farewell}
    | bye{stop}{farewell}
    | Thank you, Robin{stop}You are welcome, {hero}. {farewell}
    | I have to go now{stop}{farewell}
farewell = | Goodbye, {hero}!\n | See you soon, {hero}!\n | Have a nice day, {hero}!\n
bye_stranger =
    | 2: Goodbye{stop}{farewell_stranger}
    | Bye{stop}{farewell_stranger}
    | Thank you, Robin{stop}You are welcome. {farewell_stranger}
farewell_stranger = | Goodbye!\n | See you soon!\n | Have a nice day!\n
)";

}  // namespace gradtile
