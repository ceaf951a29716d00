#define V(name, ...) {name, run<HopperBackwardTiles __VA_ARGS__>}
V("64 rows (policy)", {64, false, false, 2}),
V("64 rows, dQ before dK", {64, false, false, 2, 1}),
V("64 rows, dK of registers", {64, false, false, 2, 2}),
V("64 rows, next dP during dK, regs", {64, false, false, 2, 3}),
V("64 rows, next dP during dK", {64, false, false, 2, 4}),
V("80 rows", {80, false, false, 1, 5}),
V("80 rows, dK from shared memory", {80, false, false, 1, 6}),
V("64 rows, P in 16 bits, order of 80", {64, false, false, 2, 5}),
