// Starts THIS.elf with qemu-user, where Linux cannot start aarch64 programs. argv[0] stays.
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char** argv) {
    static char path[PATH_MAX + 8];
    const ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n <= 0) return 126;
    strcpy(path + n, ".elf");
    char** const args = calloc(argc + 6, sizeof *args);
    int k = 0;
    args[k++] = "qemu-aarch64-static";
    args[k++] = "-0";
    args[k++] = argv[0];
    args[k++] = path;
    for (int i = 1; i < argc; ++i) args[k++] = argv[i];
    execv(getenv("GRADTILE_QEMU"), args);
    return 126;
}
