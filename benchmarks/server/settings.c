#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

struct settings settings = {.ttft = 50, .itl = 20, .tokens = 128, .per_event = 1, .per_send = 1, .chunked = 1, .log = 1};
struct stats stats;

static const struct {
    const char *key;
    double *value;
} keys[] = {
    {"ttft", &settings.ttft},         {"itl", &settings.itl},     {"tokens", &settings.tokens}, {"per_event", &settings.per_event},
    {"per_send", &settings.per_send}, {"burst", &settings.burst}, {"sync", &settings.sync},     {"chunked", &settings.chunked},
    {"log", &settings.log},           {"tag", &settings.tag},
};

static double within(double value, double low, double high) { return value < low ? low : value > high ? high : value; }

bool settings_set(const char *key, size_t key_len, const char *value)
{
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strlen(keys[i].key) == key_len && !memcmp(keys[i].key, key, key_len)) {
            *keys[i].value = atof(value);
            settings.per_event = within(settings.per_event, 1, PER_EVENT_MAX);
            settings.per_send = within(settings.per_send, 1, PER_SEND_MAX);
            return true;
        }
    return false;
}

bool settings_from_query(const char *query)
{
    bool known = true;
    for (const char *p = strchr(query, '?'); p; p = strchr(p, '&')) {
        p++;
        const char *equals = strchr(p, '=');
        if (!equals || !settings_set(p, (size_t)(equals - p), equals + 1))
            known = false;
    }
    return known;
}

void stats_json(char *out, size_t room)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    const double cpu_s = (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    snprintf(out, room,
             "{\"pid\":%d,\"requests\":%llu,\"finished\":%llu,\"events\":%llu,\"tokens\":%llu,\"connections\":%llu,\"blocked_sends\":%llu,"
             "\"first_request_ns\":%llu,\"last_request_ns\":%llu,\"late_max_us\":%.1f,\"late_mean_us\":%.1f,\"cpu_s\":%.6f}",
             (int)getpid(), (unsigned long long)stats.requests, (unsigned long long)stats.finished, (unsigned long long)stats.events, (unsigned long long)stats.tokens,
             (unsigned long long)stats.connections, (unsigned long long)stats.blocked_sends, (unsigned long long)stats.first_request_ns,
             (unsigned long long)stats.last_request_ns, (double)stats.late_max_ns / 1e3, stats.late_count ? (double)stats.late_sum_ns / 1e3 / (double)stats.late_count : 0.0, cpu_s);
}
