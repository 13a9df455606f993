#include "truth.h"

#include <stdio.h>
#include <stdlib.h>

uint64_t truth_cleared;
static struct truth_row *first, *last;

struct truth_row *truth_begin(uint64_t seq, uint64_t received_ns, uint64_t connection, uint64_t capacity)
{
    struct truth_row *row = malloc(sizeof *row + capacity * sizeof row->sent_ns[0]);
    if (!row) {
        perror("truth log");
        exit(1);
    }
    *row = (struct truth_row){.seq = seq, .received_ns = received_ns, .connection = connection, .capacity = capacity};
    if (last)
        last->next = row;
    else
        first = row;
    last = row;
    return row;
}

int truth_write(const char *path)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return -1;
    for (const struct truth_row *row = first; row; row = row->next) {
        const uint64_t head[4] = {row->seq, row->received_ns, row->connection, row->count};
        fwrite(head, sizeof head[0], 4, file);
        fwrite(row->sent_ns, sizeof row->sent_ns[0], row->count, file);
    }
    const int failed = ferror(file);
    return fclose(file) || failed ? -1 : 0;
}

void truth_clear(void)
{
    while (first) {
        struct truth_row *row = first;
        first = row->next;
        free(row);
    }
    last = NULL;
    truth_cleared++;
}
