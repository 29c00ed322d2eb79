/* Times in microseconds, and their percentiles; beyond `room` a fair sample of all. */
struct series {
    uint32_t *us;
    size_t size, room;
    uint64_t seen;
};

static void note(struct series *s, uint64_t ns)
{
    size_t at = s->size;
    if (s->size < s->room) s->size++;
    else at = (((uint64_t)random() << 16) ^ random()) % (s->seen + 1); /* a fair sample of all */
    s->seen++;
    if (at < s->room) s->us[at] = ns / 1000 > UINT32_MAX ? UINT32_MAX : ns / 1000;
}

static struct series new_series(size_t room)
{
    return (struct series){.us = malloc(room * sizeof(uint32_t)), .room = room};
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

static void print_series(const char *name, struct series *s)
{
    static const double shares[] = {0.5, 0.9, 0.99, 1};
    qsort(s->us, s->size, sizeof *s->us, by_size);
    printf(",\"%s\":[", name);
    for (int i = 0; s->size && i < 4; i++) {
        size_t at = shares[i] * s->size;
        printf("%s%u", i ? "," : "", s->us[at < s->size ? at : s->size - 1]);
    }
    printf("]");
}
