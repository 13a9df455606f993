/* The truth log: when each request arrived and when each of its events was sent.
 *
 * File layout, 64-bit words, one run of words per request:
 *     sequence number, received, connection number, n, sent[0] .. sent[n-1]
 * Stamps are CLOCK_MONOTONIC nanoseconds; `sent` is read just before the send().
 */
#ifndef TRUTH_H
#define TRUTH_H

#include <stdint.h>

struct truth_row {
    struct truth_row *next;
    uint64_t seq, received_ns, connection;
    uint64_t count, capacity;
    uint64_t sent_ns[];
};

/* A new row with room for `capacity` stamps, owned by the log. */
struct truth_row *truth_begin(uint64_t seq, uint64_t received_ns, uint64_t connection, uint64_t capacity);

/* Logs one send. `began` is the value of truth_cleared when the row was begun: rows from before a clear are gone. */
extern uint64_t truth_cleared;

static inline void truth_sent(struct truth_row *row, uint64_t began, uint64_t at_ns)
{
    if (row && began == truth_cleared && row->count < row->capacity)
        row->sent_ns[row->count++] = at_ns;
}

/* Writes all rows to `path`; -1 when the file cannot be written. */
int truth_write(const char *path);

/* Forgets all rows; requests that are still running are no longer logged. */
void truth_clear(void);

#endif
