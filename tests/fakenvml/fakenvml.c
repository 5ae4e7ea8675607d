/* fakenvml.c - a fake libnvidia-ml.so.1 driven by a text state file that a test may rewrite live.
 *
 * Written from scratch from the public NVML API documentation; contains no NVIDIA code.
 * Build:  gcc -O2 -fPIC -shared -Wl,-soname,libnvidia-ml.so.1 -Wl,--version-script=full.map \
 *             -o full/libnvidia-ml.so.1 fakenvml.c -lpthread   (or: build.sh)
 * Use:    LD_LIBRARY_PATH=.../full FAKENVML_STATE=/path/state python -c 'import pynvml; ...'
 *
 * Environment
 *   FAKENVML_STATE     state file (re-read whenever its inode/mtime/size changes; write tmp + rename)
 *   FAKENVML_COUNTERS  optional file, mmap'd: per-function call/error/ns counters (shared by processes)
 *   FAKENVML_TRACE     =1: one line per call on stderr
 *
 * State file: one "key=value" per line, '#' comments.
 *   GLOBAL   driver_version nvml_version cuda_version count init_err pcie_block_ms(20) latency_us(0)
 *            abi_proc_v3(24|32)   live_count(0|1: honour count changes without re-init)
 *   PER GPU  gpu0.KEY=V  or gpu*.KEY=V (default for all; later lines win)
 *            a numeric key that is absent  -> NVML_ERROR_NOT_SUPPORTED (3)
 *            value "!15"                   -> the function reading that key returns 15
 *            gpuN.dev_err=15    every per-device call on N returns 15 (also handle lookup)
 *            gpuN.handle_err=15 only handle lookup by index/uuid/bus id fails
 *   LISTS    gpuN.proc=pid=123 type=C mem=1048576 gi=-1 ci=-1 sm=50 memu=20 enc=0 dec=0   (repeat)
 *            gpuN.mig=slot=0 gi=1 ci=0 uuid=MIG-.. name=.. total=.. used=.. sms=16        (repeat)
 *            gpuN.field.ID[.SCOPE]=V | V:d (double) | V:l (u64) | !code                    field values
 *            gpuN.gpm.ID=V                                                                GPM metric
 *   FAULTS   err=FUNC code=15 [gpu=2] [after=N] [times=M] [delay_ms=5000]   (code=0: only delay)
 *   EVENTS   event=seq=1 gpu=3 type=8 data=79 gi=-1 ci=-1    delivered once per event set, seq ascending
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef unsigned int u32;
typedef unsigned long long u64;
#define EX __attribute__((visibility("default")))

/* ---- ABI structs (own names; checked against nvml.h by abi_check.c and against pynvml by a test) ---- */
typedef struct { u32 gpu, memory; } fk_util;
typedef struct { u64 total, free, used; } fk_mem1;
typedef struct { u32 version; u64 total, reserved, free, used; } fk_mem2;
typedef struct { u64 total, free, used; } fk_bar1;
typedef struct { u32 pid; u64 mem; } fk_proc1;
typedef struct { u32 pid; u64 mem; u32 gi, ci; } fk_proc2;
typedef struct { u32 pid; u64 mem; u32 gi, ci; u64 cc; } fk_proc3cc; /* 535.43 .. 535.86 only */
typedef struct { u32 version, mode, n; fk_proc3cc *arr; } fk_procdetail;
typedef struct { u32 pid; u64 ts; u32 sm, mem, enc, dec; } fk_putil;
typedef struct { u64 ts; u32 pid, sm, mem, enc, dec, jpg, ofa; } fk_putil2;
typedef struct { u32 version, n; u64 last; fk_putil2 *arr; } fk_putillist;
typedef union { double d; u32 ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; } fk_val;
typedef struct { u32 fieldId, scopeId; long long timestamp, latencyUsec; u32 valueType; int ret; fk_val value; } fk_field;
typedef struct { void *device; u64 type, data; u32 gi, ci; } fk_event;
typedef struct { char legacy[16]; u32 domain, bus, device, devid, subsys; char busId[32]; } fk_pci;
typedef struct { u32 version, sensor; int temp; } fk_tempv;
typedef struct { u32 version; int margin; } fk_margin;
typedef struct { u32 version; unsigned char uuid[16]; int status; u32 clique, state, health; unsigned char summary; } fk_fabric;
typedef struct { u32 sms, ce, dec, enc, jpg, ofa, gislices, cislices; u64 memMB; } fk_attr;
typedef struct { u32 max, high, partial, low, none; } fk_hist;
typedef struct { u64 ts; fk_val v; } fk_sample;
typedef struct { u64 ref, viol; } fk_viol;
typedef struct { u32 id; int ret; double value; const char *sn, *ln, *unit; } fk_gpmmetric;
typedef struct { u32 version, n; void *s1, *s2; fk_gpmmetric m[1]; } fk_gpmget;
typedef struct { u32 version, supported; } fk_gpmsup;
typedef struct { u32 util, memutil; u64 maxmem, time, start; u32 running, rsv[5]; } fk_acct;
#ifndef FK_TYPES_ONLY

/* ---- state ---- */
#define MAXD 64
#define MAXMIG 8
#define MAXPROC 64
#define MAXFLD 192
#define MAXGPM 64
#define MAXERR 64
#define MAXEV 256
#define KEYS(X) \
 X(util_gpu) X(util_mem) X(mem_total) X(mem_used) X(mem_reserved) X(bar1_total) X(bar1_used) X(temp) X(temp_margin) \
 X(thr_shutdown) X(thr_slowdown) X(thr_memmax) X(thr_gpumax) X(power) X(power_limit) X(power_enforced) X(power_default) \
 X(power_min) X(power_max) X(energy) X(clk_graphics) X(clk_sm) X(clk_mem) X(clk_video) X(max_graphics) X(max_sm) X(max_mem) \
 X(max_video) X(throttle) X(throttle_supported) X(pstate) X(fan) X(nfans) X(enc) X(dec) X(jpg) X(ofa) X(ecc_mode) X(ecc_pending) \
 X(ecc_corr_vol) X(ecc_unc_vol) X(ecc_corr_agg) X(ecc_unc_agg) X(remap_corr) X(remap_unc) X(remap_pending) X(remap_fail) \
 X(retired_sbe) X(retired_dbe) X(retired_pending) X(pcie_tx) X(pcie_rx) X(pcie_gen) X(pcie_width) X(pcie_maxgen) X(pcie_maxwidth) \
 X(pcie_replay) X(persistence) X(display_mode) X(display_active) X(compute_mode) X(cc_major) X(cc_minor) X(mig_mode) X(mig_pending) \
 X(mig_max) X(minor) X(numa) X(virt_mode) X(arch) X(brand) X(nvlinks) X(gpm_supported) X(events_supported) X(dev_err) X(handle_err) \
 X(fabric_state) X(fabric_status) X(fabric_clique) X(fabric_health) X(viol_power) X(viol_thermal) X(viol_reliability) X(cores) \
 X(buswidth) X(acct_mode) X(driver_model) X(gsp_mode) X(board_id) X(multi_gpu) X(procs_err) X(putil_err) X(topo) X(power_mgmt)
enum {
#define X(k) K_##k,
  KEYS(X)
#undef X
  NKEY };
static const char *const KNAME[] = {
#define X(k) #k,
  KEYS(X)
#undef X
};
typedef struct { long long v; int err; } val;
typedef struct { u32 pid; char type; long long mem; u32 gi, ci, sm, memu, enc, dec; } proc;
typedef struct { int used; u32 gi, ci, sms; u64 total, mused; char uuid[96], name[96]; } mig;
typedef struct { u32 id, scope; int err; char type; double d; long long i; } fld;
typedef struct { u32 id; int err; double v; } gpm;
typedef struct { val k[NKEY]; char name[96], uuid[96], serial[32], bus[32], vbios[32], part[32];
  int np, nf, ng; proc p[MAXPROC]; mig m[MAXMIG]; fld f[MAXFLD]; gpm g[MAXGPM]; } dev;
typedef struct { char fn[72]; int gpu, code; long long after, times, delay_ms; } errrule;
typedef struct { u64 seq; int gpu; u64 type, data; u32 gi, ci; } evt;
typedef struct { char drv[80], nvml[80]; int cuda, count, init_err, pcie_ms, lat_us, abi3, live; int nerr, nev; errrule e[MAXERR]; evt ev[MAXEV]; dev d[MAXD]; } state;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
/* immutable snapshots: reload() fills the next ring slot and publishes it, so unlocked readers never see a half-written state */
#define RING 8
static state *ring[RING], *cur; static int ringpos; static int loaded; static struct stat last_st;
#define S (*__atomic_load_n(&cur, __ATOMIC_ACQUIRE))
static state *fresh(void) { ringpos = (ringpos + 1) % RING; if (!ring[ringpos]) ring[ringpos] = malloc(sizeof(state)); return ring[ringpos]; }
#define PUBLISH(p) __atomic_store_n(&cur, (p), __ATOMIC_RELEASE)
static int refcnt, ndev_at_init;
typedef struct { u32 magic; int gpu, slot; } handle;
static handle H[MAXD], HM[MAXD][MAXMIG];
static long long rule_calls[MAXERR]; static char rule_key[MAXERR][96];

static u64 now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000ull + t.tv_nsec; }
static u64 epoch_us(void) { struct timespec t; clock_gettime(CLOCK_REALTIME, &t); return t.tv_sec * 1000000ull + t.tv_nsec / 1000; }
static void nap(long long us) { struct timespec t = { us / 1000000, (us % 1000000) * 1000 }; while (nanosleep(&t, &t) && errno == EINTR) ; }

/* ---- counters ---- */
typedef struct { char name[56]; u64 calls, errs, ns; } slot;
typedef struct { u64 magic; volatile u32 lock; u32 n; char pad[48]; slot s[512]; } ctab;
static ctab *C; static int c_inited;
static void counters_init(void) {
  c_inited = 1; const char *p = getenv("FAKENVML_COUNTERS"); if (!p) return;
  int fd = open(p, O_RDWR | O_CREAT | O_CLOEXEC, 0666); if (fd < 0) return;
  if (ftruncate(fd, sizeof(ctab)) == 0) { void *m = mmap(0, sizeof(ctab), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0); if (m != MAP_FAILED) { C = m; C->magic = 0x4c4d564e454b4146ull; } }
  close(fd);
}
static slot *slot_for(const char *fn) {
  if (!C) return 0;
  for (u32 i = 0; i < C->n && i < 512; i++) if (!strcmp(C->s[i].name, fn)) return &C->s[i];
  while (__atomic_exchange_n(&C->lock, 1, __ATOMIC_ACQUIRE)) nap(10);
  slot *r = 0; for (u32 i = 0; i < C->n; i++) if (!strcmp(C->s[i].name, fn)) r = &C->s[i];
  if (!r && C->n < 512) { r = &C->s[C->n]; strncpy(r->name, fn, 55); C->n++; }
  __atomic_store_n(&C->lock, 0, __ATOMIC_RELEASE); return r;
}
typedef struct { const char *fn; slot **sp; u64 t0; int ret; } call;
static int trace = -1;
static call c_begin(const char *fn, slot **sp) {
  if (!c_inited) counters_init(); if (trace < 0) trace = getenv("FAKENVML_TRACE") != 0;
  if (C && !*sp) *sp = slot_for(fn); call c = { fn, sp, C || trace ? now_ns() : 0, 0 }; return c;
}
static void c_end(call *c) {
  if (*c->sp) { slot *s = *c->sp; __atomic_fetch_add(&s->calls, 1, __ATOMIC_RELAXED); __atomic_fetch_add(&s->ns, now_ns() - c->t0, __ATOMIC_RELAXED); if (c->ret) __atomic_fetch_add(&s->errs, 1, __ATOMIC_RELAXED); }
  if (trace > 0) fprintf(stderr, "[fakenvml] %s -> %d (%llu us)\n", c->fn, c->ret, (now_ns() - c->t0) / 1000);
}
#define BEGIN static slot *sp_; __attribute__((cleanup(c_end))) call c_ = c_begin(__func__, &sp_)
#define RET(x) return (c_.ret = (x))

/* ---- state parsing ---- */
static const char *kv(const char *s, const char *k, char *out, size_t n) { /* find "k=value" token */
  size_t kl = strlen(k); const char *p = s;
  while (*p) { while (*p == ' ' || *p == '\t') p++; if (!strncmp(p, k, kl) && p[kl] == '=') { p += kl + 1; size_t i = 0; while (*p && *p != ' ' && *p != '\t' && i + 1 < n) out[i++] = *p++; out[i] = 0; return out; } while (*p && *p != ' ' && *p != '\t') p++; }
  out[0] = 0; return 0;
}
static long long kvi(const char *s, const char *k, long long def) { char b[64]; return kv(s, k, b, sizeof b) ? strtoll(b, 0, 0) : def; }
static void set_dev(dev *d, const char *key, const char *v) {
  if (!strcmp(key, "name")) { snprintf(d->name, sizeof d->name, "%s", v); return; }
  if (!strcmp(key, "uuid")) { snprintf(d->uuid, sizeof d->uuid, "%s", v); return; }
  if (!strcmp(key, "serial")) { snprintf(d->serial, sizeof d->serial, "%s", v); return; }
  if (!strcmp(key, "bus")) { snprintf(d->bus, sizeof d->bus, "%s", v); return; }
  if (!strcmp(key, "vbios")) { snprintf(d->vbios, sizeof d->vbios, "%s", v); return; }
  if (!strcmp(key, "part")) { snprintf(d->part, sizeof d->part, "%s", v); return; }
  if (!strcmp(key, "proc")) { if (d->np >= MAXPROC) return; proc *p = &d->p[d->np++]; char b[8];
    p->pid = kvi(v, "pid", 0); p->type = kv(v, "type", b, sizeof b) ? b[0] : 'C'; p->mem = kvi(v, "mem", -1); p->gi = kvi(v, "gi", -1); p->ci = kvi(v, "ci", -1);
    p->sm = kvi(v, "sm", 0); p->memu = kvi(v, "memu", 0); p->enc = kvi(v, "enc", 0); p->dec = kvi(v, "dec", 0); return; }
  if (!strcmp(key, "noproc")) { d->np = 0; return; }
  if (!strcmp(key, "mig")) { int s = kvi(v, "slot", 0); if (s < 0 || s >= MAXMIG) return; mig *m = &d->m[s]; m->used = 1; m->gi = kvi(v, "gi", 1); m->ci = kvi(v, "ci", 0); m->sms = kvi(v, "sms", 16);
    m->total = kvi(v, "total", 0); m->mused = kvi(v, "used", 0); kv(v, "uuid", m->uuid, sizeof m->uuid); kv(v, "name", m->name, sizeof m->name); for (char *q = m->name; *q; q++) if (*q == '_') *q = ' '; return; }
  if (!strncmp(key, "field.", 6)) { u32 id = strtoul(key + 6, 0, 10); const char *dot = strchr(key + 6, '.'); u32 sc = dot ? strtoul(dot + 1, 0, 10) : 0; fld *f = 0;
    for (int i = 0; i < d->nf; i++) if (d->f[i].id == id && d->f[i].scope == sc) f = &d->f[i];
    if (!f) { if (d->nf >= MAXFLD) return; f = &d->f[d->nf++]; } memset(f, 0, sizeof *f); f->id = id; f->scope = sc; f->type = 'u';
    if (v[0] == '!') f->err = atoi(v + 1); else { f->d = strtod(v, 0); f->i = strtoll(v, 0, 0); const char *t = strrchr(v, ':'); if (t) f->type = t[1]; } return; }
  if (!strncmp(key, "gpm.", 4)) { u32 id = strtoul(key + 4, 0, 10); gpm *g = 0; for (int i = 0; i < d->ng; i++) if (d->g[i].id == id) g = &d->g[i];
    if (!g) { if (d->ng >= MAXGPM) return; g = &d->g[d->ng++]; } g->id = id; g->err = v[0] == '!' ? atoi(v + 1) : 0; g->v = strtod(v, 0); return; }
  for (int i = 0; i < NKEY; i++) if (!strcmp(KNAME[i], key)) { if (v[0] == '!') { d->k[i].err = atoi(v + 1); d->k[i].v = 0; } else if (!*v || !strcmp(v, "NA")) { d->k[i].err = 3; d->k[i].v = 0; } else { d->k[i].err = 0; d->k[i].v = strtoll(v, 0, 0); } return; }
  fprintf(stderr, "[fakenvml] unknown key gpu.%s\n", key);
}
static void defaults(state *s) {
  memset(s, 0, sizeof *s); strcpy(s->drv, "580.95.05"); strcpy(s->nvml, "13.580.95.05"); s->cuda = 13000; s->count = 0; s->pcie_ms = 20; s->abi3 = 24;
  for (int i = 0; i < MAXD; i++) { dev *d = &s->d[i]; for (int k = 0; k < NKEY; k++) d->k[k].err = 3; d->k[K_dev_err].err = d->k[K_handle_err].err = d->k[K_procs_err].err = d->k[K_putil_err].err = 0;
    snprintf(d->name, sizeof d->name, "NVIDIA Fake GPU"); snprintf(d->uuid, sizeof d->uuid, "GPU-00000000-0000-0000-0000-%012d", i); snprintf(d->bus, sizeof d->bus, "00000000:%02X:00.0", 0x10 + i); }
}
static void apply(state *s, char *line) {
  char *eq = strchr(line, '='); if (!eq || line[0] == '#') return; *eq = 0; char *k = line, *v = eq + 1;
  size_t n = strlen(v); while (n && (v[n - 1] == '\n' || v[n - 1] == '\r' || v[n - 1] == ' ')) v[--n] = 0;
  if (!strncmp(k, "gpu", 3)) { char *dot = strchr(k, '.'); if (!dot) return; *dot = 0;
    if (k[3] == '*') for (int i = 0; i < MAXD; i++) set_dev(&s->d[i], dot + 1, v); else { int i = atoi(k + 3); if (i >= 0 && i < MAXD) set_dev(&s->d[i], dot + 1, v); } return; }
  if (!strcmp(k, "driver_version")) snprintf(s->drv, sizeof s->drv, "%s", v); else if (!strcmp(k, "nvml_version")) snprintf(s->nvml, sizeof s->nvml, "%s", v);
  else if (!strcmp(k, "cuda_version")) s->cuda = atoi(v); else if (!strcmp(k, "count")) s->count = atoi(v); else if (!strcmp(k, "init_err")) s->init_err = atoi(v);
  else if (!strcmp(k, "pcie_block_ms")) s->pcie_ms = atoi(v); else if (!strcmp(k, "latency_us")) s->lat_us = atoi(v); else if (!strcmp(k, "abi_proc_v3")) s->abi3 = atoi(v); else if (!strcmp(k, "live_count")) s->live = atoi(v);
  else if (!strcmp(k, "err")) { if (s->nerr >= MAXERR) return; errrule *e = &s->e[s->nerr++]; size_t i = 0; while (v[i] && v[i] != ' ' && i < 71) { e->fn[i] = v[i]; i++; } e->fn[i] = 0;
    e->gpu = kvi(v, "gpu", -1); e->code = kvi(v, "code", 0); e->after = kvi(v, "after", 0); e->times = kvi(v, "times", -1); e->delay_ms = kvi(v, "delay_ms", 0); }
  else if (!strcmp(k, "event")) { if (s->nev >= MAXEV) return; evt *e = &s->ev[s->nev++]; e->seq = kvi(v, "seq", 0); e->gpu = kvi(v, "gpu", 0); e->type = kvi(v, "type", 8); e->data = kvi(v, "data", 0); e->gi = kvi(v, "gi", -1); e->ci = kvi(v, "ci", -1); }
}
static void reload(void) { /* caller holds mu */
  const char *p = getenv("FAKENVML_STATE"); struct stat st;
  if (!p || stat(p, &st)) { if (!loaded) { state *n = fresh(); defaults(n); PUBLISH(n); loaded = 1; } return; }
  if (loaded && st.st_ino == last_st.st_ino && st.st_size == last_st.st_size && st.st_mtim.tv_sec == last_st.st_mtim.tv_sec && st.st_mtim.tv_nsec == last_st.st_mtim.tv_nsec) return;
  FILE *f = fopen(p, "re"); if (!f) return; state *n = fresh(); defaults(n); char line[1024]; while (fgets(line, sizeof line, f)) apply(n, line); fclose(f);
  PUBLISH(n); last_st = st; loaded = 1;
  for (int i = 0; i < MAXERR; i++) { char key[96] = ""; if (i < S.nerr) snprintf(key, sizeof key, "%s/%d/%d/%lld", S.e[i].fn, S.e[i].gpu, S.e[i].code, S.e[i].after); if (strcmp(key, rule_key[i])) { strcpy(rule_key[i], key); rule_calls[i] = 0; } }
}
/* common prologue: reload, init check, fault rules, delays. Returns 0 or the code to return. */
static int pro(const char *fn, int gpu, int need_init) {
  long long delay = 0; int code = 0; pthread_mutex_lock(&mu); reload();
  if (need_init && refcnt == 0) code = 1;
  if (!code) for (int i = 0; i < S.nerr; i++) { errrule *e = &S.e[i]; if (strcmp(e->fn, "*") && strcmp(e->fn, fn)) continue; if (e->gpu >= 0 && e->gpu != gpu) continue;
    long long n = rule_calls[i]++; if (n < e->after) continue; if (e->times >= 0 && n >= e->after + e->times) continue; if (e->delay_ms > delay) delay = e->delay_ms; if (e->code && !code) code = e->code; }
  if (!code && gpu >= 0 && S.d[gpu].k[K_dev_err].v) code = S.d[gpu].k[K_dev_err].v;
  int lat = S.lat_us; pthread_mutex_unlock(&mu); if (delay) nap(delay * 1000); else if (lat) nap(lat); return code;
}
#define PRO0 do { int r_ = pro(__func__, -1, 1); if (r_) RET(r_); } while (0)
static int ndev(void) { return S.live ? S.count : ndev_at_init; }
static handle *asdev(void *h) { handle *x = h; if (x >= H && x < H + MAXD && x->magic == 0xd00d) return x; if ((char *)x >= (char *)HM && (char *)x < (char *)HM + sizeof HM && x->magic == 0xd00e) return x; return 0; }
#define DEV(h) handle *hd = asdev(h); if (!hd) RET(refcnt ? 2 : 1); int g = hd->gpu; (void)g; do { int r_ = pro(__func__, g, 1); if (r_) RET(r_); } while (0)
#define PHYS if (hd->slot >= 0) RET(2)
static int get(int g, int k, long long *o) { pthread_mutex_lock(&mu); val v = S.d[g].k[k]; pthread_mutex_unlock(&mu); if (v.err) return v.err; *o = v.v; return 0; }
static int get32(int g, int k, u32 *o) { long long v = 0; int r = get(g, k, &v); if (!r) *o = (u32)v; return r; }
static int get64(int g, int k, u64 *o) { long long v = 0; int r = get(g, k, &v); if (!r) *o = (u64)v; return r; }

/* ---- lifecycle ---- */
static int do_init(const char *fn) { int r = pro(fn, -1, 0); if (r) return r; pthread_mutex_lock(&mu); r = S.init_err;
  if (!r && refcnt++ == 0) { ndev_at_init = S.count; for (int i = 0; i < MAXD; i++) { H[i] = (handle){ 0xd00d, i, -1 }; for (int j = 0; j < MAXMIG; j++) HM[i][j] = (handle){ 0xd00e, i, j }; } } pthread_mutex_unlock(&mu); return r; }
EX int nvmlInit(void) { BEGIN; RET(do_init(__func__)); }
EX int nvmlInit_v2(void) { BEGIN; RET(do_init(__func__)); }
EX int nvmlInitWithFlags(u32 f) { BEGIN; (void)f; RET(do_init(__func__)); }
EX int nvmlShutdown(void) { BEGIN; { int r_ = pro(__func__, -1, 0); if (r_) RET(r_); } pthread_mutex_lock(&mu); if (refcnt > 0) refcnt--; pthread_mutex_unlock(&mu); RET(0); }
EX const char *nvmlErrorString(int r) { static const char *const t[] = { "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request.", "Driver/library version mismatch", "In use by another client", "Insufficient Memory", "No data", "The requested vgpu operation is not available on target device, because ECC is enabled", "Insufficient Resources", "Frequency not supported", "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state" }; return r >= 0 && r < 30 ? t[r] : "Unknown Error"; }
static int str(char *o, u32 n, const char *s) { if (!o) return 2; if (!*s) return 3; if (strlen(s) + 1 > n) return 7; strcpy(o, s); return 0; }
EX int nvmlSystemGetDriverVersion(char *o, u32 n) { BEGIN; PRO0; RET(str(o, n, S.drv)); }
EX int nvmlSystemGetNVMLVersion(char *o, u32 n) { BEGIN; { int r_ = pro(__func__, -1, 0); if (r_) RET(r_); } RET(str(o, n, S.nvml)); }
EX int nvmlSystemGetCudaDriverVersion(int *o) { BEGIN; PRO0; *o = S.cuda; RET(0); }
EX int nvmlSystemGetCudaDriverVersion_v2(int *o) { BEGIN; PRO0; *o = S.cuda; RET(0); }
EX int nvmlSystemGetProcessName(u32 pid, char *o, u32 n) { BEGIN; PRO0; char p[64], b[1024]; snprintf(p, sizeof p, "/proc/%u/cmdline", pid); FILE *f = fopen(p, "re"); if (!f) RET(6); size_t k = fread(b, 1, sizeof b - 1, f); fclose(f); b[k] = 0; if (!n) RET(7); snprintf(o, n, "%s", b); RET(0); }

/* ---- enumeration ---- */
EX int nvmlDeviceGetCount_v2(u32 *o) { BEGIN; PRO0; if (!o) RET(2); *o = ndev(); RET(0); }
EX int nvmlDeviceGetCount(u32 *o) { BEGIN; PRO0; if (!o) RET(2); *o = ndev(); RET(0); }
static int look(const char *fn, int i, void **o) { if (!o || i < 0 || i >= ndev()) return 2; int r = pro(fn, i, 1); if (r) return r; long long v = 0; if (!get(i, K_handle_err, &v) && v) return v; *o = &H[i]; return 0; }
EX int nvmlDeviceGetHandleByIndex_v2(u32 i, void **o) { BEGIN; if (!refcnt) RET(1); pthread_mutex_lock(&mu); reload(); pthread_mutex_unlock(&mu); RET(look(__func__, i, o)); }
EX int nvmlDeviceGetHandleByIndex(u32 i, void **o) { BEGIN; if (!refcnt) RET(1); RET(look(__func__, i, o)); }
EX int nvmlDeviceGetHandleByUUID(const char *u, void **o) { BEGIN; PRO0; if (!u || !o) RET(2); for (int i = 0; i < ndev(); i++) { if (!strcmp(S.d[i].uuid, u)) RET(look(__func__, i, o)); for (int j = 0; j < MAXMIG; j++) if (S.d[i].m[j].used && !strcmp(S.d[i].m[j].uuid, u)) { *o = &HM[i][j]; RET(0); } } RET(6); }
EX int nvmlDeviceGetHandleByPciBusId_v2(const char *b, void **o) { BEGIN; PRO0; if (!b || !o) RET(2); for (int i = 0; i < ndev(); i++) { const char *x = S.d[i].bus; if (!strcasecmp(x, b) || (strlen(x) > 4 && !strcasecmp(x + 4, b)) || (strlen(x) > 9 && !strcasecmp(x + 9, b))) RET(look(__func__, i, o)); } RET(6); }
EX int nvmlDeviceGetHandleBySerial(const char *b, void **o) { BEGIN; PRO0; for (int i = 0; i < ndev(); i++) if (!strcmp(S.d[i].serial, b)) RET(look(__func__, i, o)); RET(6); }
EX int nvmlDeviceGetIndex(void *h, u32 *o) { BEGIN; DEV(h); PHYS; *o = g; RET(0); }
EX int nvmlDeviceGetName(void *h, char *o, u32 n) { BEGIN; DEV(h); if (hd->slot >= 0 && S.d[g].m[hd->slot].name[0]) RET(str(o, n, S.d[g].m[hd->slot].name)); RET(str(o, n, S.d[g].name)); }
EX int nvmlDeviceGetUUID(void *h, char *o, u32 n) { BEGIN; DEV(h); RET(str(o, n, hd->slot >= 0 ? S.d[g].m[hd->slot].uuid : S.d[g].uuid)); }
EX int nvmlDeviceGetSerial(void *h, char *o, u32 n) { BEGIN; DEV(h); PHYS; RET(str(o, n, S.d[g].serial)); }
EX int nvmlDeviceGetVbiosVersion(void *h, char *o, u32 n) { BEGIN; DEV(h); PHYS; RET(str(o, n, S.d[g].vbios)); }
EX int nvmlDeviceGetBoardPartNumber(void *h, char *o, u32 n) { BEGIN; DEV(h); PHYS; RET(str(o, n, S.d[g].part)); }
static int pci(int g, fk_pci *p) { memset(p, 0, sizeof *p); u32 d, b, v; if (sscanf(S.d[g].bus, "%x:%x:%x", &d, &b, &v) != 3) return 3; p->domain = d; p->bus = b; p->device = v; p->devid = 0x233010de; snprintf(p->busId, 32, "%08X:%02X:%02X.0", d, b, v); snprintf(p->legacy, 16, "%04X:%02X:%02X.0", d & 0xffff, b & 0xff, v & 0xff); return 0; }
EX int nvmlDeviceGetPciInfo_v3(void *h, fk_pci *p) { BEGIN; DEV(h); if (!p) RET(2); RET(pci(g, p)); }
EX int nvmlDeviceGetPciInfo_v2(void *h, fk_pci *p) { BEGIN; DEV(h); RET(pci(g, p)); }
EX int nvmlDeviceGetPciInfo(void *h, fk_pci *p) { BEGIN; DEV(h); RET(pci(g, p)); }

/* ---- simple getters ---- */
#define G32(FN, K) EX int FN(void *h, u32 *o) { BEGIN; DEV(h); PHYS; if (!o) RET(2); RET(get32(g, K_##K, o)); }
#define G64(FN, K) EX int FN(void *h, u64 *o) { BEGIN; DEV(h); PHYS; if (!o) RET(2); RET(get64(g, K_##K, o)); }
#define G32X2(FN, A, B) EX int FN(void *h, u32 *a, u32 *b) { BEGIN; DEV(h); PHYS; int r = get32(g, K_##A, a); if (r) RET(r); if (get32(g, K_##B, b)) *b = *a; RET(0); }
#define GUTIL(FN, K) EX int FN(void *h, u32 *u, u32 *per) { BEGIN; DEV(h); PHYS; *per = 167000; RET(get32(g, K_##K, u)); }
G32(nvmlDeviceGetPowerUsage, power) G32(nvmlDeviceGetPowerManagementLimit, power_limit) G32(nvmlDeviceGetEnforcedPowerLimit, power_enforced)
G32(nvmlDeviceGetPowerManagementDefaultLimit, power_default) G32(nvmlDeviceGetPowerManagementMode, power_mgmt) G64(nvmlDeviceGetTotalEnergyConsumption, energy)
G32(nvmlDeviceGetPerformanceState, pstate) G32(nvmlDeviceGetPowerState, pstate) G32(nvmlDeviceGetFanSpeed, fan) G32(nvmlDeviceGetNumFans, nfans)
G32(nvmlDeviceGetPersistenceMode, persistence) G32(nvmlDeviceGetDisplayMode, display_mode) G32(nvmlDeviceGetDisplayActive, display_active)
G32(nvmlDeviceGetComputeMode, compute_mode) G32(nvmlDeviceGetMinorNumber, minor) G32(nvmlDeviceGetNumaNodeId, numa) G32(nvmlDeviceGetVirtualizationMode, virt_mode)
G32(nvmlDeviceGetArchitecture, arch) G32(nvmlDeviceGetBrand, brand) G32(nvmlDeviceGetCurrPcieLinkGeneration, pcie_gen) G32(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
G32(nvmlDeviceGetMaxPcieLinkGeneration, pcie_maxgen) G32(nvmlDeviceGetMaxPcieLinkWidth, pcie_maxwidth) G32(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_maxgen) G32(nvmlDeviceGetPcieReplayCounter, pcie_replay)
G32(nvmlDeviceGetRetiredPagesPendingStatus, retired_pending) G64(nvmlDeviceGetCurrentClocksEventReasons, throttle) G64(nvmlDeviceGetCurrentClocksThrottleReasons, throttle)
G64(nvmlDeviceGetSupportedClocksEventReasons, throttle_supported) G64(nvmlDeviceGetSupportedClocksThrottleReasons, throttle_supported) G32(nvmlDeviceGetNumGpuCores, cores) G32(nvmlDeviceGetMemoryBusWidth, buswidth)
G32(nvmlDeviceGetAccountingMode, acct_mode) G32(nvmlDeviceGetBoardId, board_id) G32(nvmlDeviceGetMultiGpuBoard, multi_gpu) G64(nvmlDeviceGetSupportedEventTypes, events_supported)
G32X2(nvmlDeviceGetEccMode, ecc_mode, ecc_pending) G32X2(nvmlDeviceGetPowerManagementLimitConstraints, power_min, power_max) G32X2(nvmlDeviceGetDriverModel, driver_model, driver_model) G32X2(nvmlDeviceGetDriverModel_v2, driver_model, driver_model)
G32X2(nvmlDeviceGetCudaComputeCapability, cc_major, cc_minor) G32X2(nvmlDeviceGetMigMode, mig_mode, mig_pending) G32X2(nvmlDeviceGetGspFirmwareMode, gsp_mode, gsp_mode)
GUTIL(nvmlDeviceGetEncoderUtilization, enc) GUTIL(nvmlDeviceGetDecoderUtilization, dec) GUTIL(nvmlDeviceGetJpgUtilization, jpg) GUTIL(nvmlDeviceGetOfaUtilization, ofa)
EX int nvmlDeviceGetFanSpeed_v2(void *h, u32 f, u32 *o) { BEGIN; DEV(h); PHYS; u32 n = 0; get32(g, K_nfans, &n); if (f >= n) RET(2); RET(get32(g, K_fan, o)); }
EX int nvmlDeviceGetClockInfo(void *h, u32 t, u32 *o) { BEGIN; DEV(h); PHYS; static const int k[] = { K_clk_graphics, K_clk_sm, K_clk_mem, K_clk_video }; if (t > 3 || !o) RET(2); RET(get32(g, k[t], o)); }
EX int nvmlDeviceGetClock(void *h, u32 t, u32 id, u32 *o) { BEGIN; DEV(h); PHYS; static const int k[] = { K_clk_graphics, K_clk_sm, K_clk_mem, K_clk_video }; if (t > 3 || id) RET(t > 3 ? 2 : 3); RET(get32(g, k[t], o)); }
EX int nvmlDeviceGetMaxClockInfo(void *h, u32 t, u32 *o) { BEGIN; DEV(h); PHYS; static const int k[] = { K_max_graphics, K_max_sm, K_max_mem, K_max_video }; if (t > 3 || !o) RET(2); RET(get32(g, k[t], o)); }
EX int nvmlDeviceGetTemperature(void *h, u32 s, u32 *o) { BEGIN; DEV(h); PHYS; if (s || !o) RET(2); RET(get32(g, K_temp, o)); }
EX int nvmlDeviceGetTemperatureV(void *h, fk_tempv *t) { BEGIN; DEV(h); PHYS; if (!t || t->version != (sizeof *t | 1u << 24)) RET(t ? 25 : 2); if (t->sensor) RET(2); RET(get32(g, K_temp, (u32 *)&t->temp)); }
EX int nvmlDeviceGetMarginTemperature(void *h, fk_margin *t) { BEGIN; DEV(h); PHYS; if (!t || t->version != (sizeof *t | 1u << 24)) RET(t ? 25 : 2); RET(get32(g, K_temp_margin, (u32 *)&t->margin)); }
EX int nvmlDeviceGetTemperatureThreshold(void *h, u32 t, u32 *o) { BEGIN; DEV(h); PHYS; static const int k[] = { K_thr_shutdown, K_thr_slowdown, K_thr_memmax, K_thr_gpumax }; if (t > 7) RET(2); if (t > 3) RET(3); RET(get32(g, k[t], o)); }
EX int nvmlDeviceGetUtilizationRates(void *h, fk_util *u) { BEGIN; DEV(h); if (!u) RET(2); long long m = 0; if (hd->slot >= 0 || (!get(g, K_mig_mode, &m) && m == 1)) RET(3); int r = get32(g, K_util_gpu, &u->gpu); if (r) RET(r); if (get32(g, K_util_mem, &u->memory)) u->memory = 0; RET(0); }
static int meminfo(handle *hd, u64 *t, u64 *rs, u64 *fr, u64 *us) { int g = hd->gpu; if (hd->slot >= 0) { mig *m = &S.d[g].m[hd->slot]; *t = m->total; *us = m->mused; *rs = 0; *fr = m->total - m->mused; return 0; }
  int r = get64(g, K_mem_total, t); if (r) return r; r = get64(g, K_mem_used, us); if (r) return r; if (get64(g, K_mem_reserved, rs)) *rs = 0; *fr = *t > *us + *rs ? *t - *us - *rs : 0; return 0; }
EX int nvmlDeviceGetMemoryInfo(void *h, fk_mem1 *m) { BEGIN; DEV(h); if (!m) RET(2); u64 t, rs, f, u; int r = meminfo(hd, &t, &rs, &f, &u); if (r) RET(r); m->total = t; m->free = f; m->used = u + rs; RET(0); } /* v1 "used" includes reserved */
EX int nvmlDeviceGetMemoryInfo_v2(void *h, fk_mem2 *m) { BEGIN; DEV(h); if (!m) RET(2); if (m->version != (sizeof *m | 2u << 24)) RET(25); u64 t, rs, f, u; int r = meminfo(hd, &t, &rs, &f, &u); if (r) RET(r); m->total = t; m->reserved = rs; m->free = f; m->used = u; RET(0); }
EX int nvmlDeviceGetBAR1MemoryInfo(void *h, fk_bar1 *m) { BEGIN; DEV(h); int r = get64(g, K_bar1_total, &m->total); if (r) RET(r); if (get64(g, K_bar1_used, &m->used)) m->used = 0; m->free = m->total - m->used; RET(0); }
EX int nvmlDeviceGetPcieThroughput(void *h, u32 c, u32 *o) { BEGIN; DEV(h); PHYS; if (c > 1 || !o) RET(2); u32 v; int r = get32(g, c ? K_pcie_rx : K_pcie_tx, &v); if (r) RET(r); if (S.pcie_ms) nap(S.pcie_ms * 1000ll); *o = v; RET(0); }
EX int nvmlDeviceGetTotalEccErrors(void *h, u32 t, u32 c, u64 *o) { BEGIN; DEV(h); PHYS; if (t > 1 || c > 1) RET(2); RET(get64(g, t ? (c ? K_ecc_unc_agg : K_ecc_unc_vol) : (c ? K_ecc_corr_agg : K_ecc_corr_vol), o)); }
EX int nvmlDeviceGetMemoryErrorCounter(void *h, u32 t, u32 c, u32 loc, u64 *o) { BEGIN; DEV(h); PHYS; if (t > 1 || c > 1) RET(2); if (loc != 2 && loc != 7) RET(3); RET(get64(g, t ? (c ? K_ecc_unc_agg : K_ecc_unc_vol) : (c ? K_ecc_corr_agg : K_ecc_corr_vol), o)); }
EX int nvmlDeviceGetRemappedRows(void *h, u32 *c, u32 *u, u32 *p, u32 *f) { BEGIN; DEV(h); PHYS; int r = get32(g, K_remap_corr, c); if (r) RET(r); if (get32(g, K_remap_unc, u)) *u = 0; if (get32(g, K_remap_pending, p)) *p = 0; if (get32(g, K_remap_fail, f)) *f = 0; RET(0); }
EX int nvmlDeviceGetRowRemapperHistogram(void *h, fk_hist *o) { BEGIN; DEV(h); PHYS; u32 c; int r = get32(g, K_remap_corr, &c); if (r) RET(r); *o = (fk_hist){ 640, 0, 0, 0, 0 }; RET(0); }
EX int nvmlDeviceGetRetiredPages(void *h, u32 cause, u32 *n, u64 *o) { BEGIN; DEV(h); PHYS; u32 k; int r = get32(g, cause ? K_retired_dbe : K_retired_sbe, &k); if (r) RET(r); if (!o) { u32 had = *n; *n = k; RET(k > had ? 7 : 0); } if (*n < k) { *n = k; RET(7); } for (u32 i = 0; i < k; i++) o[i] = 0x1000ull * (i + 1); *n = k; RET(0); }
EX int nvmlDeviceGetViolationStatus(void *h, u32 p, fk_viol *o) { BEGIN; DEV(h); PHYS; o->ref = epoch_us(); RET(get64(g, p == 0 ? K_viol_power : p == 1 ? K_viol_thermal : K_viol_reliability, &o->viol)); }
EX int nvmlDeviceGetTopologyCommonAncestor(void *a, void *b, u32 *o) { BEGIN; DEV(a); if (!asdev(b)) RET(2); RET(get32(g, K_topo, o)); }
EX int nvmlDeviceGetP2PStatus(void *a, void *b, u32 i, u32 *o) { BEGIN; DEV(a); if (!asdev(b) || i > 5) RET(2); *o = 0; RET(0); }
EX int nvmlDeviceGetCpuAffinity(void *h, u32 n, unsigned long *o) { BEGIN; DEV(h); memset(o, 0xff, n * sizeof *o); RET(0); }
EX int nvmlDeviceGetMemoryAffinity(void *h, u32 n, unsigned long *o, u32 sc) { BEGIN; DEV(h); (void)sc; memset(o, 0, n * sizeof *o); o[0] = 1; RET(0); }
EX int nvmlDeviceGetNvLinkState(void *h, u32 l, u32 *o) { BEGIN; DEV(h); PHYS; u32 n; int r = get32(g, K_nvlinks, &n); if (r) RET(r); if (l >= n) RET(2); *o = 1; RET(0); }
EX int nvmlDeviceGetNvLinkVersion(void *h, u32 l, u32 *o) { BEGIN; DEV(h); PHYS; u32 n; int r = get32(g, K_nvlinks, &n); if (r) RET(r); if (l >= n) RET(2); *o = 5; RET(0); }
EX int nvmlDeviceGetNvLinkErrorCounter(void *h, u32 l, u32 c, u64 *o) { BEGIN; DEV(h); PHYS; (void)c; u32 n; int r = get32(g, K_nvlinks, &n); if (r) RET(r); if (l >= n) RET(2); *o = 0; RET(0); }
EX int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *h, u32 l, fk_pci *o) { BEGIN; DEV(h); PHYS; u32 n; int r = get32(g, K_nvlinks, &n); if (r) RET(r); if (l >= n) RET(2); RET(pci(g, o)); }
static int fabric(int g, fk_fabric *o, u32 ver) { u32 st; int r = get32(g, K_fabric_state, &st); if (r) return r; memset(o->uuid, 0x11, 16); o->state = st; o->status = 0; get32(g, K_fabric_status, (u32 *)&o->status); o->clique = 1; get32(g, K_fabric_clique, &o->clique); o->health = 0; get32(g, K_fabric_health, &o->health); if (ver == 3) o->summary = 1; return 0; }
EX int nvmlDeviceGetGpuFabricInfoV(void *h, fk_fabric *o) { BEGIN; DEV(h); PHYS; u32 v = o->version; if (v != (36 | 2u << 24) && v != (40 | 3u << 24)) RET(25); RET(fabric(g, o, v >> 24)); }
EX int nvmlDeviceGetGpuFabricInfo(void *h, void *o) { BEGIN; DEV(h); PHYS; fk_fabric f; int r = fabric(g, &f, 2); if (!r) memcpy(o, f.uuid, 28); RET(r); }
EX int nvmlDeviceGetAccountingPids(void *h, u32 *n, u32 *o) { BEGIN; DEV(h); (void)n; (void)o; RET(3); }
EX int nvmlDeviceGetAccountingStats(void *h, u32 pid, fk_acct *o) { BEGIN; DEV(h); (void)pid; (void)o; RET(3); }

/* ---- MIG ---- */
EX int nvmlDeviceIsMigDeviceHandle(void *h, u32 *o) { BEGIN; DEV(h); *o = hd->slot >= 0; RET(0); }
EX int nvmlDeviceGetMaxMigDeviceCount(void *h, u32 *o) { BEGIN; DEV(h); PHYS; u32 v; int r = get32(g, K_mig_max, &v); *o = r ? 0 : v; RET(0); }
EX int nvmlDeviceGetMigDeviceHandleByIndex(void *h, u32 i, void **o) { BEGIN; DEV(h); PHYS; long long m = 0; if (get(g, K_mig_mode, &m) || m != 1) RET(3); if (i >= MAXMIG) RET(2); if (!S.d[g].m[i].used) RET(6); *o = &HM[g][i]; RET(0); }
EX int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **o) { BEGIN; DEV(h); if (hd->slot < 0) RET(2); *o = &H[g]; RET(0); }
EX int nvmlDeviceGetGpuInstanceId(void *h, u32 *o) { BEGIN; DEV(h); if (hd->slot < 0) RET(2); *o = S.d[g].m[hd->slot].gi; RET(0); }
EX int nvmlDeviceGetComputeInstanceId(void *h, u32 *o) { BEGIN; DEV(h); if (hd->slot < 0) RET(2); *o = S.d[g].m[hd->slot].ci; RET(0); }
EX int nvmlDeviceGetAttributes_v2(void *h, fk_attr *a) { BEGIN; DEV(h); if (hd->slot < 0) RET(3); mig *m = &S.d[g].m[hd->slot]; *a = (fk_attr){ m->sms, 1, 0, 0, 0, 0, 1, 1, m->total >> 20 }; RET(0); }

/* ---- processes ---- */
static int plist(handle *hd, char type, u32 *n, void *out, int esz) { int g = hd->gpu; if (!n) return 2; pthread_mutex_lock(&mu); dev *d = &S.d[g]; u32 k = 0; int r = d->k[K_procs_err].v;
  if (!r) { for (int i = 0; i < d->np; i++) { proc *p = &d->p[i]; if (!(p->type == type || (p->type == 'B' && type != 'M'))) continue; if (hd->slot >= 0 && p->gi != d->m[hd->slot].gi) continue;
      if (out && k < *n) { char *q = (char *)out + (size_t)k * esz; memset(q, 0, esz); fk_proc3cc *e = (fk_proc3cc *)q; e->pid = p->pid; e->mem = p->mem < 0 ? ~0ull : (u64)p->mem; if (esz >= 24) { e->gi = p->gi; e->ci = p->ci; } if (esz >= 32) e->cc = 0; } k++; }
    u32 cap = *n; *n = k; r = k == 0 ? 0 : (!out || cap < k) ? 7 : 0; } pthread_mutex_unlock(&mu); return r; }
#define PL(FN, T, SZ) EX int FN(void *h, u32 *n, void *o) { BEGIN; DEV(h); RET(plist(hd, T, n, o, SZ)); }
PL(nvmlDeviceGetComputeRunningProcesses_v3, 'C', S.abi3) PL(nvmlDeviceGetComputeRunningProcesses_v2, 'C', 24) PL(nvmlDeviceGetComputeRunningProcesses, 'C', 16)
PL(nvmlDeviceGetGraphicsRunningProcesses_v3, 'G', S.abi3) PL(nvmlDeviceGetGraphicsRunningProcesses_v2, 'G', 24) PL(nvmlDeviceGetGraphicsRunningProcesses, 'G', 16)
PL(nvmlDeviceGetMPSComputeRunningProcesses_v3, 'M', S.abi3) PL(nvmlDeviceGetMPSComputeRunningProcesses_v2, 'M', 24)
EX int nvmlDeviceGetConfComputeMemSizeInfo(void *h, void *o) { BEGIN; DEV(h); (void)o; RET(3); }
EX int nvmlDeviceGetRunningProcessDetailList(void *h, fk_procdetail *l) { BEGIN; DEV(h); if (!l) RET(2); if (l->version != (sizeof *l | 1u << 24)) RET(25); u32 n = l->n; if (!l->arr) n = 0; int r = plist(hd, l->mode == 1 ? 'G' : l->mode == 2 ? 'M' : 'C', &n, l->arr, 32); l->n = n; RET(r); }
EX int nvmlDeviceGetProcessUtilization(void *h, fk_putil *o, u32 *n, u64 last) { BEGIN; DEV(h); PHYS; if (!n) RET(2); long long m = 0; if (!get(g, K_mig_mode, &m) && m == 1) RET(3); pthread_mutex_lock(&mu); dev *d = &S.d[g]; int r = d->k[K_putil_err].v; u64 ts = epoch_us() - 100000; u32 k = 0;
  if (!r) { if (!o) { *n = MAXPROC; r = 7; } else { for (int i = 0; i < d->np && k < *n; i++) if (d->p[i].sm + d->p[i].memu + d->p[i].enc + d->p[i].dec && ts > last) o[k++] = (fk_putil){ d->p[i].pid, ts, d->p[i].sm, d->p[i].memu, d->p[i].enc, d->p[i].dec }; *n = k; if (!k) r = 6; } } pthread_mutex_unlock(&mu); RET(r); }
EX int nvmlDeviceGetProcessesUtilizationInfo(void *h, fk_putillist *l) { BEGIN; DEV(h); PHYS; if (l->version != (sizeof *l | 1u << 24)) RET(25); pthread_mutex_lock(&mu); dev *d = &S.d[g]; int r = d->k[K_putil_err].v; u64 ts = epoch_us() - 100000; u32 k = 0;
  if (!r) { if (!l->arr || !l->n) { l->n = MAXPROC; r = 7; } else { for (int i = 0; i < d->np && k < l->n; i++) if (d->p[i].sm + d->p[i].memu) l->arr[k++] = (fk_putil2){ ts, d->p[i].pid, d->p[i].sm, d->p[i].memu, d->p[i].enc, d->p[i].dec, 0, 0 }; l->n = k; if (!k) r = 6; } } pthread_mutex_unlock(&mu); RET(r); }

/* ---- field values / samples ---- */
EX int nvmlDeviceGetFieldValues(void *h, int n, fk_field *v) { BEGIN; DEV(h); if (n < 1 || !v) RET(2); long long ts = epoch_us(); pthread_mutex_lock(&mu); dev *d = &S.d[g];
  for (int i = 0; i < n; i++) { v[i].timestamp = ts; v[i].latencyUsec = 0; v[i].ret = 3; v[i].value.ull = 0; v[i].valueType = 1; u32 id = v[i].fieldId;
    if (id == 91 && !d->k[K_nvlinks].err) { v[i].ret = 0; v[i].value.ui = d->k[K_nvlinks].v; } else if ((id == 83 || id == 191) && !d->k[K_energy].err) { v[i].ret = 0; v[i].valueType = 3; v[i].value.ull = d->k[K_energy].v; }
    else if (id == 186 && !d->k[K_power].err) { v[i].ret = 0; v[i].value.ui = d->k[K_power].v; }
    for (int j = 0; j < d->nf; j++) { fld *f = &d->f[j]; if (f->id != id || f->scope != v[i].scopeId) continue; v[i].ret = f->err; if (!f->err) { if (f->type == 'd') { v[i].valueType = 0; v[i].value.d = f->d; } else if (f->type == 'l') { v[i].valueType = 3; v[i].value.ull = f->i; } else if (f->type == 's') { v[i].valueType = 4; v[i].value.sll = f->i; } else if (f->type == 'i') { v[i].valueType = 5; v[i].value.si = f->i; } else { v[i].valueType = 1; v[i].value.ui = f->i; } } } }
  pthread_mutex_unlock(&mu); RET(0); }
EX int nvmlDeviceGetSamples(void *h, u32 t, u64 last, u32 *vt, u32 *n, fk_sample *o) { BEGIN; DEV(h); PHYS; static const int k[] = { K_power, K_util_gpu, K_util_mem, K_enc, K_dec, K_clk_sm, K_clk_mem }; if (t > 6) RET(3); u32 v; int r = get32(g, k[t], &v); if (r) RET(r); *vt = 1; (void)last; if (!o) { *n = 100; RET(0); } u32 c = *n < 10 ? *n : 10; u64 ts = epoch_us(); for (u32 i = 0; i < c; i++) { o[i].ts = ts - (c - i) * 20000; o[i].v.ull = v; } *n = c; RET(0); }

/* ---- events ---- */
typedef struct { u32 magic; u64 mask[MAXD]; u64 last; } evset;
static u64 maxseq(void) { u64 m = 0; for (int i = 0; i < S.nev; i++) if (S.ev[i].seq > m) m = S.ev[i].seq; return m; }
EX int nvmlEventSetCreate(void **o) { BEGIN; PRO0; evset *e = calloc(1, sizeof *e); e->magic = 0xe5e5; e->last = maxseq(); *o = e; RET(0); }
EX int nvmlEventSetFree(void *s) { BEGIN; PRO0; evset *e = s; if (!e || e->magic != 0xe5e5) RET(2); e->magic = 0; free(e); RET(0); }
EX int nvmlDeviceRegisterEvents(void *h, u64 types, void *s) { BEGIN; DEV(h); PHYS; evset *e = s; if (!e || e->magic != 0xe5e5) RET(2); u64 sup = 0; int r = get64(g, K_events_supported, &sup); if (r) RET(r); if (types & ~sup) RET(3); pthread_mutex_lock(&mu); e->mask[g] |= types; pthread_mutex_unlock(&mu); RET(0); }
static int ewait(const char *fn, void *s, fk_event *d, u32 ms) { evset *e = s; if (!e || e->magic != 0xe5e5 || !d) return 2; u64 end = now_ns() + ms * 1000000ull;
  for (;;) { int r = pro(fn, -1, 1); if (r) return r; int lost = 0; pthread_mutex_lock(&mu); evt *b = 0;
    for (int i = 0; i < S.nev; i++) { evt *v = &S.ev[i]; if (v->seq <= e->last || v->gpu < 0 || v->gpu >= MAXD || !(e->mask[v->gpu] & v->type)) continue; if (!b || v->seq < b->seq) b = v; }
    if (b) { e->last = b->seq; *d = (fk_event){ &H[b->gpu], b->type, b->data, b->gi, b->ci }; } else for (int i = 0; i < MAXD; i++) if (e->mask[i] && S.d[i].k[K_dev_err].v == 15) lost = 1;
    pthread_mutex_unlock(&mu); if (b) return 0; if (lost) return 15; if (now_ns() >= end) return 10; nap(250000); } }
EX int nvmlEventSetWait_v2(void *s, fk_event *d, u32 ms) { BEGIN; RET(ewait(__func__, s, d, ms)); }
EX int nvmlEventSetWait(void *s, fk_event *d, u32 ms) { BEGIN; RET(ewait(__func__, s, d, ms)); }

/* ---- GPM ---- */
typedef struct { u32 magic; int gpu; u64 t; int n; gpm g[MAXGPM]; } gsample;
EX int nvmlGpmQueryDeviceSupport(void *h, fk_gpmsup *o) { BEGIN; DEV(h); if (!o || o->version != 1) RET(o ? 25 : 2); u32 v = 0; get32(g, K_gpm_supported, &v); o->supported = v; RET(0); }
EX int nvmlGpmSampleAlloc(void **o) { BEGIN; PRO0; gsample *s = calloc(1, sizeof *s); s->magic = 0x6709; *o = s; RET(0); }
EX int nvmlGpmSampleFree(void *p) { BEGIN; gsample *s = p; if (!s || s->magic != 0x6709) RET(2); s->magic = 0; free(s); RET(0); }
static int gget(int g, gsample *s) { u32 v = 0; get32(g, K_gpm_supported, &v); if (!v) return 3; if (!s || s->magic != 0x6709) return 2; pthread_mutex_lock(&mu); s->gpu = g; s->t = now_ns(); s->n = S.d[g].ng; memcpy(s->g, S.d[g].g, sizeof s->g); pthread_mutex_unlock(&mu); return 0; }
EX int nvmlGpmSampleGet(void *h, void *s) { BEGIN; DEV(h); RET(gget(g, s)); }
EX int nvmlGpmMigSampleGet(void *h, u32 gi, void *s) { BEGIN; DEV(h); (void)gi; RET(gget(g, s)); }
EX int nvmlGpmMetricsGet(fk_gpmget *q) { BEGIN; PRO0; if (!q || q->version != 1) RET(q ? 25 : 2); gsample *a = q->s1, *b = q->s2; if (!a || !b || a->magic != 0x6709 || b->magic != 0x6709 || !a->t || !b->t || a->gpu != b->gpu || b->t <= a->t) RET(2);
  for (u32 i = 0; i < q->n; i++) { fk_gpmmetric *m = &q->m[i]; m->ret = 3; m->value = 0; m->sn = "fake"; m->ln = "fake"; m->unit = "%"; for (int j = 0; j < b->n; j++) if (b->g[j].id == m->id) { m->ret = b->g[j].err; m->value = b->g[j].v; } } RET(0); }
#endif
