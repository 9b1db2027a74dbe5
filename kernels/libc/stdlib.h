// See README.md.
#pragma once

#include <stddef.h>

struct div_t {
  int quot, rem;
};
struct ldiv_t {
  long quot, rem;
};
struct lldiv_t {
  long long quot, rem;
};

#define EXIT_SUCCESS 0
#define EXIT_FAILURE 1
#define RAND_MAX 2147483647
#define MB_CUR_MAX 16

extern "C" {
double atof(const char*), strtod(const char*, char**);
float strtof(const char*, char**);
long double strtold(const char*, char**);
int atoi(const char*);
long atol(const char*), strtol(const char*, char**, int);
long long atoll(const char*), strtoll(const char*, char**, int);
unsigned long strtoul(const char*, char**, int);
unsigned long long strtoull(const char*, char**, int);

int abs(int);
long labs(long);
long long llabs(long long);
div_t div(int, int);
ldiv_t ldiv(long, long);
lldiv_t lldiv(long long, long long);
int rand();
void srand(unsigned);

void *malloc(size_t), *calloc(size_t, size_t), *realloc(void*, size_t);
void* aligned_alloc(size_t, size_t);
int posix_memalign(void**, size_t, size_t);
void free(void*);

[[noreturn]] void abort();
[[noreturn]] void exit(int);
[[noreturn]] void _Exit(int);
[[noreturn]] void quick_exit(int);
int atexit(void (*)()), at_quick_exit(void (*)()), system(const char*);
char* getenv(const char*);

void* bsearch(const void*, const void*, size_t, size_t, int (*)(const void*, const void*));
void qsort(void*, size_t, size_t, int (*)(const void*, const void*));

int mblen(const char*, size_t), mbtowc(wchar_t*, const char*, size_t), wctomb(char*, wchar_t);
size_t mbstowcs(wchar_t*, const char*, size_t), wcstombs(char*, const wchar_t*, size_t);
}
