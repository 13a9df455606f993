/* One answer in the wire format of an OpenAI-compatible engine: request facts -> bytes. No sockets, no clock. */
#ifndef ANSWER_H
#define ANSWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct answer {
    uint64_t seq;
    bool chat, usage, chunked;
    int tokens, tokens_per_event, tokens_sent;
    long prompt_tokens;
    int prefix_len;   /* every event starts with `prefix`, up to the opening quote of its text */
    int envelope_len; /* the part of `prefix` before "choices" */
    int role_len;     /* the part of `prefix` before "content" (chat only) */
    char prefix[384];
};

/* An upper bound for the bytes of anything rendered below, per event. */
enum { ANSWER_EVENT_MAX = 4096 };

void answer_start(struct answer *a, const char *model);

static inline bool answer_complete(const struct answer *a) { return a->tokens_sent >= a->tokens; }
static inline int answer_events(const struct answer *a) { return (a->tokens + a->tokens_per_event - 1) / a->tokens_per_event; }

/* Each writes at `out` and returns the end. answer_head: status line, headers and, for chat, the role event.
 * answer_event: the next event; the last one carries finish_reason and is followed by usage, [DONE] and the end of the body. */
char *answer_head(struct answer *a, char *out);
char *answer_event(struct answer *a, char *out);

/* The whole answer without streaming, in a buffer that the caller frees; its length goes to `*len`. */
char *answer_plain(const struct answer *a, const char *model, size_t *len);

#endif
