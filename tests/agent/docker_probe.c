/* The only program of the test image. Arguments are done in order: say TEXT · err TEXT · env NAME · write PATH · uid · wait SECONDS ·
 * patient (SIGTERM ends with 7) · eat (memory until killed) · exit CODE. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void ended(int signal_number) { (void)signal_number; _exit(7); }

int main(int count, char **words) {
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int index = 1; index < count; index++) {
        const char *word = words[index], *value = index + 1 < count ? words[index + 1] : "";
        if (!strcmp(word, "say")) { puts(value); index++; }
        else if (!strcmp(word, "err")) { fprintf(stderr, "%s\n", value); index++; }
        else if (!strcmp(word, "env")) { const char *found = getenv(value); printf("%s=%s\n", value, found ? found : "(none)"); index++; }
        else if (!strcmp(word, "write")) { FILE *file = fopen(value, "w"); printf("write %s: %s\n", value, file ? "yes" : "no"); if (file) fclose(file); index++; }
        else if (!strcmp(word, "uid")) printf("uid=%d\n", (int)getuid());
        else if (!strcmp(word, "wait")) { sleep((unsigned)atoi(value)); index++; }
        else if (!strcmp(word, "patient")) signal(SIGTERM, ended);
        else if (!strcmp(word, "eat")) for (;;) memset(malloc(1 << 20), 1, 1 << 20);
        else if (!strcmp(word, "exit")) return atoi(value);
    }
    return 0;
}
