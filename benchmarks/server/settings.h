/* What the server does and what it counted. Set by options and /config, read everywhere. */
#ifndef SETTINGS_H
#define SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PER_EVENT_MAX = 256, PER_SEND_MAX = 64 };

struct settings {
    double ttft, itl, tokens, per_event, per_send, burst, sync, chunked, log, tag;
};

struct stats {
    uint64_t requests, finished, events, tokens, connections, blocked_sends, first_request_ns, last_request_ns, late_max_ns, late_sum_ns, late_count;
};

extern struct settings settings;
extern struct stats stats;

/* Both return false when a key is not known. `query`: a path with ?key=value&… or without. */
bool settings_set(const char *key, size_t key_len, const char *value);
bool settings_from_query(const char *query);

void stats_json(char *out, size_t room);

#endif
