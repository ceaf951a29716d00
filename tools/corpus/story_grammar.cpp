#include <gradtile/tools/corpus/grammar.h>

namespace gradtile {

// Most rules are one sentence, so a sentence's choices are in one place. Facts that the whole story uses
// (hero, friend, home, thing and its look, food) are attributes.
constexpr std::string_view story_grammar_notation = R"(
# ---- Who, where and what ----

child(Lily/she/her/him/girl) =
    | Lily/she/her/her/girl | Tom/he/his/him/boy | Anna/she/her/her/girl | Ben/he/his/him/boy
    | Clara/she/her/her/girl | Max/he/his/him/boy | Nora/she/her/her/girl | Finn/he/his/him/boy
    | Rosa/she/her/her/girl | Jack/he/his/him/boy | Mia/she/her/her/girl | Oscar/he/his/him/boy
    | Ella/she/her/her/girl | Sam/he/his/him/boy | Ivy/she/her/her/girl | Hugo/he/his/him/boy
    | Ruby/she/her/her/girl | Leo/he/his/him/boy | Zoe/she/her/her/girl | Theo/he/his/him/boy

animal(fox/a) =
    | fox/a fox | owl/an owl | hedgehog/a hedgehog | badger/a badger | otter/an otter | rabbit/a rabbit
    | squirrel/a squirrel | duck/a duck | mouse/a mouse | goat/a goat | donkey/a donkey | crow/a crow
    | hen/a hen | bear/a bear | frog/a frog | goose/a goose

pet(Bramble/he/his/him) =
    | Bramble/he/his/him | Pip/he/his/him | Hazel/she/her/her | Moss/he/his/him | Clover/she/her/her
    | Button/he/his/him | Juniper/she/her/her | Thistle/he/his/him | Nutmeg/she/her/her | Biscuit/he/his/him
    | Willow/she/her/her | Rusty/he/his/him | Poppy/she/her/her | Barley/he/his/him

place(forest/in) =
    | forest/at the edge of the forest | river/in a house by the river | hill/on top of a green hill
    | lake/in a cottage near the lake | harbour/above the old harbour | mill/beside the mill
    | meadow/in a hut behind the meadow | valley/in a deep green valley | farm/on a farm full of geese
    | lighthouse/under the lighthouse | orchard/next to the orchard | bridge/by the stone bridge

object(kite/a) =
    | kite/a kite | lantern/a lantern | drum/a drum | boat/a boat | whistle/a whistle | scarf/a scarf
    | key/a key | bell/a bell | basket/a basket | book/a book | hat/a hat | map/a map | mirror/a mirror
    | flute/a flute | blanket/a blanket | teapot/a teapot | clock/a clock | spoon/a spoon

shade(red/a) =
    | red/a red | blue/a blue | green/a green | yellow/a yellow | silver/a silver | golden/a golden
    | little/a little | old/an old | wooden/a wooden | striped/a striped | shiny/a shiny | crooked/a crooked

dish(soup/some) =
    | soup/a bowl of soup | bread/some warm bread | pie/an apple pie | jam/a jar of plum jam
    | porridge/some porridge | honey/a pot of honey | pancakes/nine pancakes | cheese/a round cheese
    | cake/a carrot cake | stew/a pan of stew

plant(pumpkin/a) =
    | pumpkin/a pumpkin | turnip/a turnip | sunflower/a sunflower | cabbage/a cabbage | rose/a rose
    | cherry tree/a cherry tree | melon/a melon | beanstalk/a beanstalk

skill(swim/swimming) =
    | swim/swimming | dance/dancing | whistle/whistling | climb/climbing | sing/singing | paint/painting
    | row/rowing | knit/knitting | juggle/juggling | skate/skating

# ---- A story ----

story =
    | 14: {hero=child} and the {adventure}
    | 2: How {hero=child} learned to {skill=skill}\n{opening} {scene}\n{lesson}
    | 2: The {pair}
    | 2: {colour=shade.A} {thing=object} for {hero=child}\n{opening} {scene}\n{birthday}

adventure =
    | 3: lost {thing=object}\n{opening} {scene} {treasure}\n{losing} {scene}\n{search} {passing} {meeting}\n{chat} {finding}\n{ending}
    | 3: great race\n{opening} {scene}\n{meeting_first} {chat}\n{challenge} {scene}\n{running}\n{ending}
    | 2: night of the storm\n{opening} {scene}\n{storm} {scene}\n{knock}\n{shelter} {chat}\n{ending}
    | 2: hungry {beast=animal}\n{opening} {scene}\n{cooking} {scene}\n{visitor}\n{sharing} {chat}\n{ending}
    | 2: giant {crop=plant}\n{opening}\n{seed}\n{pulling} {scene}\n{meeting} {chat}\n{uprooting} {scene}\n{ending}
    | 2: sleepless moon\n{opening} {scene}\n{moon} {passing}\n{advice} {chat}\n{lullaby}\n{ending}
    | 2: little door\n{opening} {scene}\n{door}\n{behind_door} {chat}\n{key_to_it} {scene}\n{ending}

opening =
    | 4: Once upon a time, {nature} {hero.girl} named {hero} lived {home=place.in}.
    | 2: Long ago, {home=place.in}, there lived {nature} {hero.girl} called {hero}.
    | 2: There was once {nature} {hero.girl} who lived {home=place.in}. Everyone called {hero.him} {hero}.
    | {hero} was {nature} {hero.girl} who lived {home=place.in} with {relative}.
    | In a time of {times}, {home=place.in}, lived {nature} {hero.girl} named {hero}.

nature = | a kind | a curious | a clever | a quiet | a brave | a cheerful | a gentle | a stubborn | a patient
    | a shy | a merry | a careful | a lonely | a dreamy | an honest | a restless | a thoughtful | a lazy | a polite
    | a bold | a cheeky | a hungry | a tidy | a forgetful | a friendly
relative = | 3: {hero.her} grandmother | 2: {hero.her} grandfather | an old uncle | seven cats | two noisy brothers | a tall aunt
times = | kings and bears | long winters | slow trains | tall ships | short summers
when = | One {weather} {hour} | Early one {weather} morning | On a {weather} {hour} | On the first {weather} {hour} of {season}
weather = | 2: sunny | windy | rainy | cold | foggy | bright | warm | frosty | quiet | grey | golden | misty | stormy | mild | dull | lovely
hour = | 3: morning | 2: afternoon | 2: evening | day
season = | spring | summer | autumn | winter
far = | far away | down by the {home} | behind the {home} | over the {home} | to the next village | across the field
hidden = | a mossy stone | a fallen tree | a thorn bush | an empty barrel | a pile of leaves | a wooden fence
how = | softly | kindly | quickly | slowly | with a smile | with a nod | in a low voice | after a while | very politely
    | gravely | sweetly | dreamily | without a word of doubt | like a judge | for the first time | as well as {hero.she} could
    | once more | with shining eyes | in surprise | bravely
feeling = | happy | proud | warm | tired but happy | lucky | brave | as light as a feather | at home

# ---- Things to see, to carry and to talk about: most of a story's entropy ----

look = | small | big | grey | brown | white | black | round | thin | fat | soft | loud | slow | quick | young | wise
    | proud | sleepy | lazy | hungry | happy | tired | funny | clumsy | friendly | nervous | silent | dusty | noisy
    | polite | strange | pretty | muddy | fluffy | spotted | plump | tame | wild | famous | bored | jolly
creature = | cat | dog | pony | sheep | cow | bee | cricket | snail | sparrow | robin | swan | seagull | pigeon | mole
    | bat | butterfly | ladybird | toad | lizard | hare | calf | lamb | turkey | spider | moth | raven | tailor
    | gardener | fisherman | painter | piper | sailor
did = | slept | danced | sang | waited | jumped | yawned | dreamed | sneezed | hid | rested | played | sat | stood
    | hummed | walked | hopped | wept | laughed | argued | listened | nodded | whistled | shivered | read
near = | under | behind | near | beside | next to | in front of | not far from | above
landmark = | the barn | the gate | the well | the bush | the wall | the chapel | the pond | the ladder | the cart | the oven
    | the hedge | the bench | the beehive | the stable | the clothes line | the signpost | the haystack | the shed
    | the rain barrel | the pear tree | the scarecrow | the cellar | the flower bed | the mailbox
number = | two | three | four | five | six | seven | eight | nine | ten | eleven | twelve | some | too many | no
goods = | apples | pears | nuts | candles | ribbons | shells | feathers | ropes | nails | letters | spoons | socks
    | plums | onions | carrots | eggs | buttons | marbles | pencils | stamps | pebbles | radishes | matches | bottles
    | biscuits | cherries | turnips | mushrooms | pillows | umbrellas

somebody = | a {look} {creature}
somebody_capital = | A {look} {creature}
somewhere = | {near} {landmark}
things = | {number} {goods}

scene =
    | 4: A {look} {creature} {did} {somewhere}{tail}
    | 2: The {creature} {did}, the {creature} {did}, and {somebody} {did} {somewhere}.
    | {number_capital} {look} {goods} lay {somewhere}{tail}
    | It was so {weather} that even the {creature} {did} {somewhere}.
    | Somewhere {somebody} {did}{tail}
number_capital = | Two | Three | Four | Five | Six | Seven | Eight | Nine | Ten | Eleven | Twelve
tail = | 3: . | \sall {hour}. | \sfor a while. | \slike {somebody}. | \swith {things}. | , and {somebody} {did}, too.
passing =
    | On the way {hero.she} passed {somebody}, {somebody} and {somebody}.
    | First {hero.she} asked {somebody}, then {somebody}, and then {somebody} who {did} {somewhere}.
    | {hero.She} took {things}, {things} and {things} with {hero.him}.
    | {hero.She} walked past {landmark}, past {landmark} and past {landmark}, where {somebody} {did}.
chat =
    | "Do you like {goods}?" asked {pal}. "I like {goods} better," said {hero} {how}.
    | "Yesterday I saw {somebody} {somewhere}," said {pal}. "It had {things}."
    | {pal} talked about {goods}, about {goods} and about {somebody} who {did} {somewhere}.
    | "At home I have {things} and {things}," said {pal} {how}.
    | "My cousin is {somebody}," said {pal}. "And mine is {somebody}," said {hero} {how}.

# ---- Meeting somebody ----

meeting =
    | 2: That {hour} {hero.she} met {beast=animal.a} named {pal=pet}. {greeting}
    | 2: Behind {hidden} sat {beast=animal.a}. "My name is {pal=pet}," said the {beast}. {greeting}
    | Soon {pal=pet} the {beast=animal} came {coming}. {greeting}
    | There {hero.she} heard {beast=animal.a} {noise}. It was {pal=pet}, and {pal.he} was {busy}. {greeting}
meeting_first =
    | {hero.Her} best friend was {beast=animal.a} named {pal=pet}. {habit}
    | Next door lived {pal=pet} the {beast=animal}, who {boast}. {habit}
    | Nobody near the {home} was prouder than {pal=pet}, {beast=animal.a} who {boast}. {habit}
coming = | along the path | out of the grass | down the road | around the corner | through a hole in the fence
noise = | laughing | humming | sneezing | crying | snoring | counting | singing
busy = | looking for {trifle} | hiding from the rain | talking to a snail | waiting for the moon | eating a pear
    | counting the clouds | drawing in the sand
trifle = | a button | a penny | an acorn | a feather | a blue stone | the end of the rainbow | {things} | {somebody}
boast = | never told a lie | could count to a hundred | had once seen the king | was afraid of nothing
    | slept until noon | knew every song
habit = | Every {hour} they {pastime} together. | They often {pastime}, even when it rained.
    | When the sun went down, they {pastime}.
pastime = | played cards | told stories | picked berries | fed the ducks | looked at the clouds | drank tea
    | threw stones into the water
greeting =
    | "Why do you look so {mood}?" asked the {beast}. "{trouble}," said {hero}.
    | "Can I help you?" asked {pal} {how}. "{trouble}," said {hero}.
    | {hero} told {pal.him} everything, and the {beast} listened {how}.
    | "Good {hour}," said {pal}. "You look {mood}." And {hero} told {pal.him} why.
mood = | sad | worried | tired | unhappy | lost | cold
trouble = | I do not know what to do | I need a friend | I have had a bad day | Nothing goes right today | It is a long story

# ---- The lost thing ----

treasure =
    | {hero.She} loved {colour=shade.a} {thing} more than anything in the world.
    | Every day {hero.she} played with {colour=shade.a} {thing}.
    | {hero.Her} greatest treasure was {colour=shade.a} {thing} from {giver}.
    | Nothing made {hero.him} happier than {colour=shade.a} {thing}, a gift from {giver}.
giver = | {hero.her} grandmother | {hero.her} uncle | an old sailor | the miller | a travelling tailor | {somebody}
losing =
    | {when}, the {colour} {thing} was gone. {missing}
    | Then, {when_low}, {hero.she} could not find the {thing}. {missing}
    | But {when_low} the wind was strong, and the {thing} {flew}. {missing}
when_low = | one {weather} {hour} | on a {weather} {hour} | before breakfast
flew = | was blown away | rolled down the hill | fell into the water | vanished in the fog
missing =
    | "Where is my {thing}?" cried {hero}. {looked}
    | "Oh no!" said {hero}. "My {colour} {thing}!" {looked}
    | {hero} wanted to cry, but {hero.she} took a deep breath instead. {looked}
looked =
    | {hero.She} looked under {furniture} and behind {furniture}, but found only {trifle}.
    | First {hero.she} searched {furniture}, then {furniture}, then the garden.
    | It was not in the kitchen, and it was not under {furniture}.
furniture = | the bed | the table | the stove | the chair | the cupboard | the stairs | the old sofa | the piano
search =
    | So {hero.she} put on {hero.her} {clothes} and went {far}.
    | Without a word {hero.she} took {hero.her} {clothes} and walked {far}.
    | "I will find it," {hero.she} said, and ran {far}.
clothes = | coat | boots | warm cap | raincoat | best shoes | thick gloves
finding =
    | "{seen}," said {pal}. {together} And there, {spot}, lay the {colour} {thing}. {joy}
    | The {beast} thought {how}. "{seen}," said {pal.he}. {together} {spot_high} they found the {thing}. {joy}
    | "{colour.A} {thing}?" said {pal}. "{seen}." {together} There it was, {spot}. {joy}
seen = | I think I saw it this morning | A magpie has it in her nest | Follow me | I know where the wind takes things
    | We must ask the river | Let us look where nobody looks
together = | Together they walked {far}. | Side by side they climbed over {hidden}. | They searched until {hero.her} feet hurt.
    | They went on and on, singing {how}.
spot = | under {hidden} | in the tall grass | high up in a tree | beside the path | between two roots
spot_high = | Under {hidden} | In the tall grass | Beside the path | Between two roots
joy =
    | "Thank you, {pal}!" said {hero}. "You are a true friend."
    | {hero} laughed and hugged the {beast}.
    | "We did it!" shouted {pal}, and they danced around {hidden}.
    | {hero} was so glad that {hero.she} gave {pal} {trifle}.

# ---- The race ----

challenge =
    | 2: {when}, {dared} {answer}
    | "{dare}," said {pal} one {weather} {hour}. {answer}
dared =
    | {pal} said, "{dare}."
    | they saw a sign: a race from the {home} to {goal}, and {prize} for the winner.
dare = | I bet I can run faster than you | Let us race to {goal} | Nobody can beat me
    | You are too slow for a race | I have raced {somebody} and won | Whoever loses gives the winner {things}
goal = | the church | the old well | the windmill | the tall oak | the market | the end of the road
prize = | a golden cup | ten pennies | a basket of plums | a blue ribbon | {dish=dish.some}
answer =
    | "We shall see," said {hero}. {start}
    | {hero} only smiled and tied {hero.her} shoes. {start}
    | "I will try," {hero} answered {how}. {start}
start = | One, two, three, and off they went! | A whistle blew, and the race began. | The {bystander} dropped a {cloth}, and both of them ran.
bystander = | baker | miller | teacher | postman | mayor | old shepherd
cloth = | flag | white cloth | handkerchief | yellow leaf
running =
    | At first the {beast} was ahead, but then {pal.he} {delay}. {choice}
    | {pal} ran like {somebody}. {hero} ran {how}. Near {landmark} the {beast} {delay}. {choice}
    | They ran past {landmark}, past {somebody} and past the {bystander}. Then {pal} {delay}. {choice}
delay = | stopped to eat berries | fell asleep in the sun | tripped over a root | hurt {pal.his} foot | fell into a ditch
    | lost the way | got stuck in the mud
choice =
    | 2: {hero} could have won, but {hero.she} stopped and helped {pal.him}. "A friend is worth more than a race," {hero.she} said.
    | 2: {hero} did not stop, and {hero.she} was first by {margin}. "Well done," said {pal} {how}.
    | {hero} waited for {pal.him}, and they crossed the line hand in hand. Everyone cheered.
margin = | a step | a nose | half a mile | a minute | three jumps

# ---- The storm ----

storm =
    | {when}, {sign}. {rain}
sign = | black clouds came over the {home} | the birds stopped singing | {hero} smelled rain in the air
    | the sea turned dark | every cow in the valley lay down
rain = | The wind {howled}, and the rain {drummed}. {inside} | Soon the thunder {rolled} and the wind {howled}. {inside}
    | Lightning flashed, and the whole house shook. {inside}
howled = | howled in the chimney | shook the trees | tore at the roof | blew the candles out
drummed = | beat on the window | fell like stones | ran down the walls | would not stop
rolled = | rolled over the hills | cracked like a whip | growled like a bear
inside = | {hero} sat by the fire with {dish=dish.some}. | {hero} lit {colour=shade.a} lamp and waited.
    | {hero} pulled the blanket over {hero.her} head. | {hero} counted the seconds between the thunder and the light.
knock =
    | Then there was a knock at the door. Outside stood {beast=animal.a}, {wet}. "{plea}" said the {beast}. "I am {pal=pet}."
    | Suddenly something scratched at the window. It was {pal=pet} the {beast=animal}, {wet}. "{plea}" {pal.he} called.
    | In the middle of the night {hero.she} heard {beast=animal.a} crying. "Who are you?" asked {hero}. "{pal=pet}," said the {beast}. "{plea}"
wet = | wet to the bone | cold and tired | shaking all over | with a leaf on {pal_head} | covered in mud
pal_head = | one ear | the nose | the head
plea = | Please let me in! | May I sit by your fire? | My house has blown away! | Help, I am lost in the dark!
shelter =
    | "Come in, come in!" said {hero}. {care} {calm}
    | {hero} opened the door at once. {care} {calm}
    | {hero} was a little afraid, but {hero.she} said, "You are welcome here." {care} {calm}
care = | {hero.She} gave {pal.him} a dry towel and {hot}. | {hero.She} wrapped {pal} in a {soft} blanket. | They shared {hot} by the fire.
    | {pal} ate {hot}, and then {pal.he} ate some more.
hot = | hot milk | sweet tea | baked apples | toast with butter | onion soup | roasted nuts
soft = | soft | warm | woollen | thick | patched
calm = | All night they told each other stories about {somebody} and {somebody}, and nobody minded the thunder. | When the sun rose, the storm was over.
    | "I was never afraid," said {pal}, and they both laughed. | By morning the sky was clear and blue.

# ---- The hungry visitor ----

cooking =
    | 2: {when}, {cook} {dish=dish.some}. {smell}
    | {hero.She} could cook better than anyone, and {when_low} {hero.she} made {dish=dish.some}. {smell}
cook = | {hero} made | {hero.her} neighbour brought | {hero} won | the {bystander} gave {hero.him}
smell = | The smell woke {somebody} {somewhere}. | It smelled so good that even the clouds stopped. | It smelled of {spice} and {spice}.
spice = | butter | cinnamon | summer | pepper | smoke | thyme | home
visitor =
    | Behind {hidden} a hungry {beast} named {pal=pet} lifted {pal.his} nose. {theft}
    | Now {pal=pet}, the hungry {beast}, had eaten nothing for {days}. {theft}
    | {beast.A} called {pal=pet} {smelled}. {theft}
days = | a day | two days | three days | a week | as long as {pal.he} could remember
smelled = | smelled it, too | followed the smell to the door | sat down under the window and sighed
theft =
    | When {hero} turned around, half of the {dish} was gone. "Who has been eating?" {hero.she} asked.
    | {pal.He} crept into the kitchen and put {pal.his} nose into the {dish}. "Stop!" cried {hero}.
    | "Only one bite," thought {pal.he}. But soon there was only one bite left. {hero} came in and stared.
sharing =
    | "I am sorry," said {pal} {how}. "I was so hungry." {forgive}
    | The {beast} turned red. "It was not me," {pal.he} said, with {dish} on {pal.his} nose. {forgive}
    | "It tastes like {spice}," said {pal}. "Forgive me." {forgive}
forgive =
    | "Next time, just ask," said {hero}, and {hero.she} fetched a second spoon.
    | {hero} could not be angry. "Then help me to make more," {hero.she} said, and so {pal.he} did.
    | {hero} laughed. "There is enough for two," {hero.she} said, and they ate the rest together.

# ---- The giant plant ----

seed =
    | {when}, {sowing}. {water}
sowing = | {hero} put a {tiny} seed into the ground | a bird dropped a {tiny} seed into {hero.her} garden
    | {seller} sold {hero.him} a {tiny} seed for {price}
tiny = | tiny | round | black | striped | speckled | strange
seller = | a tired pedlar | the miller | a woman with one tooth | a wandering fiddler | somebody with {things}
price = | a penny | {things} | a song | a kiss | {hero.her} old hat
water = | {hero.She} gave it water and {things} every {hour}. {growing} | {hero.She} sang to it every {hour}. {growing}
    | {hero.She} told it a story about {somebody} every {hour}. {growing}
growing = | Soon it was {crop.a} as big as {size}. | It grew and grew, until it was {crop.a} as tall as {size}.
size = | a cow | a house | a haystack | the church tower | a ship | three bears
pulling =
    | But now {hero.she} could not move it. {hero.She} pulled and pulled, but the {crop} {stayed}.
    | "It is blocking my door!" said {hero}. {hero.She} pushed with all {hero.her} strength, but the {crop} {stayed}.
    | The {bystander} came to look, and the {bystander} came to laugh. {hero} pulled, but the {crop} {stayed}.
stayed = | stayed where it was | only creaked a little | did not even shake | would not let go
uprooting =
    | "Let me try," said {pal}. {hero} held the {crop}, {pal} held {hero}, and they pulled. {out}
    | {pal} was small, but {pal.he} had an idea. "Dig a hole {hole}," said the {beast}. {out}
    | "Have you asked it nicely?" said the {beast}. So {hero} bowed and asked the {crop} {how}. {out}
hole = | on the left | under the root | as deep as your arm | where the sun sets
out = | Out it came with a loud {bang}! {feast} | There was a {bang}, and they both fell on their backs. {feast} | With a {bang} it came loose. {feast}
bang = | pop | crack | bang | sigh | plop
feast = | They shared it with everyone from the {home}. | It fed the whole village for {days_long}.
    | They made {dish=dish.some} out of it and invited the {bystander}. | They rolled it {far} and won first prize.
days_long = | a week | a month | the whole winter | nine days

# ---- The sleepless moon ----

moon =
    | {when}, the moon did not go to bed. {shining}
    | One night the moon knocked at {hero.her} window. {shining}
    | One night {hero} saw that the moon was crying. {shining}
shining = | "What is wrong?" asked {hero}. "{complaint}," said the moon. | "I cannot sleep," said the moon. "{complaint}."
    | "Dear moon," said {hero}, "what can I do for you?" "{complaint}," sighed the moon.
complaint = | The stars are too loud | I am afraid of the dark | My bed of clouds has blown away
    | Nobody ever tells me a story | I have a cold nose
advice =
    | {hero} went {far} to ask {pal=pet}, the wisest {beast=animal} in the land. {wisdom}
    | So {hero.she} woke {hero.her} friend {pal=pet}, {beast=animal.a} who {boast}. {wisdom}
    | "I know who can help," said {hero}, and {hero.she} called {pal=pet} the {beast=animal}. {wisdom}
wisdom = | "That is easy," said {pal}. "{remedy}." | {pal} closed {pal.his} eyes and thought {how}. "{remedy}," {pal.he} said at last.
    | "Hm," said the {beast}. "When I cannot sleep, {pal_remedy}. {remedy}."
pal_remedy = | I count snails | I think of soup | I turn around three times | I listen to the rain
remedy = | Sing a song without an end | Give the moon {dish=dish.some} | Knit a scarf as long as the river | Tell the moon about {things} and {somebody}
    | Let the moon look into the lake
lullaby =
    | So they did, and the moon {yawned}. {asleep}
    | It took them until {late}, but then the moon {yawned}. {asleep}
    | {hero} began, and {pal} helped {how}. The moon {yawned}. {asleep}
yawned = | yawned | grew round and soft | smiled and closed one eye | turned over and sighed
late = | midnight | two o'clock | the first cock crowed | the stars went pale
asleep = | "Good night, {hero}," it whispered. "Good night, moon," whispered {hero}. | Soon it was fast asleep behind the {home}.
    | And all the stars said, "Hush!" | Then the whole {home} was dark and still.

# ---- The little door ----

door =
    | {when}, {discovery} {small}. {locked}
discovery =
    | {hero} found a door behind {furniture}. It was no bigger than
    | while {hero} was cleaning, {hero.she} saw a door under {furniture}. It was as small as
    | somebody knocked from inside the wall. {hero} looked, and there was a door, hardly larger than
small = | a hand | a book | a loaf of bread | a slice of cheese | a postcard
locked = | It was locked, and beside it hung {colour=shade.a} {thing=object}. | On it was painted {colour=shade.a} {thing=object}.
    | Somebody had leaned {colour=shade.a} {thing=object} against it.
behind_door =
    | {hero} knocked {how}. "Who is there?" called a voice. It was {pal=pet}, {beast=animal.a}, and {pal.he} was {busy}.
    | {hero} looked through the keyhole and saw an eye. "{pal=pet} is my name," said the {beast=animal} behind the door.
    | Then the door opened, and out came {beast=animal.a}. "At last!" {pal_says}
pal_says = | said the {beast}. "I am {pal=pet}, and I have waited for {days_long}." | cried {pal=pet}, for that was the name of the {beast}.
key_to_it =
    | "Is that your {colour} {thing}?" asked {hero}. "{lostit}," said {pal}. {reward}
    | {pal} pointed at the {thing}. "{lostit}," said {pal.he}. {reward}
    | "Please give me the {thing}," said the {beast}. "{lostit}." {reward}
lostit = | It belonged to my mother | Without it I cannot go home | I lost it in the great flood | It opens every door but this one
    | It only works on {weather} days
reward =
    | {hero} gave it to {pal.him}, and {pal} showed {hero.him} {wonder}.
    | "Then it is yours," said {hero}. For that {pal} let {hero.him} see {wonder}.
    | They carried it in together, and behind the door {hero} saw {wonder}.
wonder = | a garden full of {weather} light | a staircase down to the sea | a town of {colour} houses
    | {somebody} with {things} | a library for mice | the place where the wind sleeps

# ---- Learning something ----

lesson =
    | {longing}. {first_try}\n{passing} {meeting}\n{chat} {teaching} {scene}\n{success}\n{ending}
longing =
    | {hero.Her} friends could all {skill}, but {hero.she} could not
    | More than anything {hero.she} wanted to {skill}
    | {when}, {hero} saw {bystander_a} {skill.swimming} and wanted to do the same
bystander_a = | the baker | the miller | the teacher | the postman | the mayor | an old shepherd
first_try = | {hero.She} tried it once, and {failed}. | The first time {hero.she} tried, {failed}. | "It cannot be so hard," {hero.she} thought. "Even {somebody} can do it." But {failed}.
failed = | the geese laughed | {hero.she} fell on {hero.her} nose | a window broke | nothing happened at all
    | {hero.she} got a terrible hiccup | the cat ran away
teaching =
    | "I can teach you," said {pal}. "{rule_one}, and {rule_two}." {practice}
    | "Nobody is born {skill.swimming}," said the {beast}. "{rule_one}, and {rule_two}." {practice}
    | It turned out that {pal} loved {skill.swimming}. "{rule_one}," {pal.he} said, "and {rule_two}." {practice}
rule_one = | Breathe slowly | Begin with something small | Look at your feet | Do not look at your feet | Eat a good breakfast
rule_two = | never hurry | think of the sea | try again tomorrow | do not listen to the geese | count to seven
practice = | For {days_long} they practised {somewhere}, where {somebody} {did}. | They practised in the sun and in the rain. | {hero} practised {how}, day after day.
success =
    | {when}, it worked. "I am {skill.swimming}!" cried {hero}. {cheer}
    | And then, {when_low}, {hero.she} could {skill} better than {bystander_a}. {cheer}
    | At the end of {season}, {hero} could {skill} even with {hero.her} eyes closed. {cheer}
cheer = | {pal} clapped {how}. | {somebody_capital} cheered. | Even the geese were silent. | "I knew it," said {pal}. | The whole {home} came to watch.

# ---- A birthday ----

birthday =
    | {birthday_morning} {passing}\n{meeting} {chat}\n{plan} {scene}\n{surprise}\n{ending}
birthday_morning =
    | It was {hero.her} birthday, but nobody {remembered}. {wish}
    | {when}, {hero} turned {age}, but nobody {remembered}. {wish}
remembered = | remembered it | said a word | had baked a cake | came to the door
age = | six | seven | eight | nine | ten
wish = | {hero.She} got {things} and {things}, but all {hero.she} wanted was {colour.a} {thing}. | For a year {hero.she} had wished for {colour.a} {thing}. | "If only I had {colour.a} {thing}," {hero.she} sighed.
plan =
    | "Wait here," said {pal}, and ran {far}. {making}
    | {pal} had no money, but {pal.he} had {material}. {making}
    | The {beast} said nothing, but {pal.he} went straight to {bystander_a}. {making}
material = | two clever hands | a piece of string | a big heart | an old box | a bucket of paint
making = | All {hour} {pal.he} hammered and painted. | {pal.He} traded {trifle} for {trifle}, and {trifle} for something better. | It took longer than {pal.he} had thought.
surprise =
    | In the evening there was a parcel at the door. In it was {colour.a} {thing}! {thanks}
    | When {hero} came home, the house was full of light, and on the table lay {colour.a} {thing}. {thanks}
    | "Close your eyes," said {pal}. And when {hero} opened them, there was the {colour} {thing}. {thanks}
thanks = | "It is the best {thing} in the world," said {hero}. | {hero} did not know what to say, so {hero.she} hugged {pal}.
    | "How did you know?" asked {hero}. "I listened," said {pal}. | Then they ate {dish=dish.some} and sang until midnight.

# ---- Two children ----

pair =
    | quarrel of {hero=child} and {rival=child}\n{opening} {neighbour} {scene}\n{quarrel} {scene}\n{meeting} {chat}\n{peace}\n{ending}
    | secret of {hero=child} and {rival=child}\n{opening} {neighbour} {scene}\n{secret} {scene}\n{meeting} {chat}\n{telling}\n{ending}
neighbour =
    | On the other side of the {home} lived {rival}, {nature} {rival.girl}.
    | {hero.Her} neighbour {rival} was {nature} {rival.girl}, and they were always together.
    | {rival}, {nature} {rival.girl}, lived next door.
quarrel =
    | {when}, {offence}. {words_of_anger}
offence =
    | they both wanted the same {colour=shade} {thing=object}
    | {rival} broke {colour=shade.a} {thing=object} that belonged to {hero}
    | {rival} found {colour=shade.a} {thing=object}, and {hero} hid it
words_of_anger =
    | "It is all your fault!" shouted {hero}. "No, yours!" shouted {rival}. {apart}
    | {rival} turned red, and {hero} stamped {hero.her} foot. {apart}
    | "I never want to see you again," said {rival}. {apart}
apart = | For {days_long} they did not speak. | So they played alone, and it was no fun at all. | They drew a line across the garden, and nobody crossed it.
peace =
    | "{rival} is sitting behind {hidden}," said {pal}, "and {rival.she} looks sad, too." {sorry}
    | "A {thing} cannot laugh with you," said the {beast} {how}. "{rival} can." {sorry}
    | The {beast} fetched {rival}, and put {rival.him} next to {hero}. "Now talk," said {pal}. {sorry}
sorry =
    | "I am sorry," they said at the same time. Then they had to laugh.
    | {hero} held out {hero.her} hand, and {rival} took it.
    | {rival} gave {hero} half of {rival.her} {snack}, and all was well.
snack = | apple | sandwich | biscuit | orange | chocolate
secret =
    | {when}, {treasure_trove}. {promise}
treasure_trove =
    | they found {colour=shade.a} {thing=object} in {hiding}
    | {rival} showed {hero} {colour=shade.a} {thing=object} that nobody knew about
    | {colour=shade.a} {thing=object} fell out of {hiding}
hiding = | a hollow tree | the attic | an old coat | the well | a bird's nest
promise = | "We must not tell anyone," said {rival}. {guard} | "It is our secret," whispered {hero}. {guard} | They shook hands and promised to keep it safe. {guard}
guard = | They buried it {somewhere}, among {things}. | They kept it under {furniture}. | Every {hour} one of them kept watch.
telling =
    | "A secret is heavy," said {pal}. "{share}" {told}
    | The {beast} smiled. "I have known it since {season}," {pal.he} said. "{share}" {told}
    | "That {colour} {thing} is mine," said {pal}. "But {keep}" {told}
share = | Three can carry it better than two. | Shall I carry a piece of it? | Put it where everyone can see it.
keep = | you may keep it. | it is happier with you. | I never liked it.
told =
    | So {rival} and {hero} told the whole {home}, and nobody was angry.
    | {hero} looked at {rival}, {rival} looked at {hero}, and both of them nodded.
    | From then on there were three of them, and the {thing} was never lonely.

# ---- How it ends ----

ending =
    | 2: From that day on, {hero} and {pal} were {friends}.\n\n
    | 2: That night {hero} felt {feeling} and slept until {morning}.\n\n
    | And if you ever come to the {home}, you can still {trace}.\n\n
    | {hero} went home to the {home}, and {hero.she} felt {feeling}.\n\n
    | "Will you come again tomorrow?" asked {hero}. "{tomorrow}," said {pal}.\n\n
    | And {pal} the {beast}? {pal.He} {afterwards}.\n\n
friends = | the best of friends | never apart | friends for life | seen together every day | like brother and sister
morning = | noon | breakfast | the sun was high | the rooster crowed | Sunday
trace = | hear them laugh | see their footprints | hear the {beast} sing | find {trifle} there | smell the tea
tomorrow = | And the day after | Of course | Only if there is {snack_some} | I never left | Every day
snack_some = | cake | tea | jam | toast
afterwards = | told the story to everyone | is still smiling | went back to sleep | learned to write and wrote it all down
    | never said a word about it | bought a new hat
)";

}  // namespace gradtile
