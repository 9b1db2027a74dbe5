// See README.md.
#pragma once

#include <bits/types/mbstate_t.h>
#include <stdarg.h>
#include <stddef.h>

struct FILE;
struct tm;
using wint_t = __WINT_TYPE__;

#define WEOF (0xffffffffu)

extern "C" {
int wprintf(const wchar_t*, ...), wscanf(const wchar_t*, ...);
int fwprintf(FILE*, const wchar_t*, ...), fwscanf(FILE*, const wchar_t*, ...);
int swprintf(wchar_t*, size_t, const wchar_t*, ...), swscanf(const wchar_t*, const wchar_t*, ...);
int vwprintf(const wchar_t*, va_list), vwscanf(const wchar_t*, va_list);
int vfwprintf(FILE*, const wchar_t*, va_list), vfwscanf(FILE*, const wchar_t*, va_list);
int vswprintf(wchar_t*, size_t, const wchar_t*, va_list);
int vswscanf(const wchar_t*, const wchar_t*, va_list);

wint_t fgetwc(FILE*), getwc(FILE*), getwchar(), ungetwc(wint_t, FILE*);
wint_t fputwc(wchar_t, FILE*), putwc(wchar_t, FILE*), putwchar(wchar_t);
wchar_t* fgetws(wchar_t*, int, FILE*);
int fputws(const wchar_t*, FILE*), fwide(FILE*, int);

double wcstod(const wchar_t*, wchar_t**);
float wcstof(const wchar_t*, wchar_t**);
long double wcstold(const wchar_t*, wchar_t**);
long wcstol(const wchar_t*, wchar_t**, int);
long long wcstoll(const wchar_t*, wchar_t**, int);
unsigned long wcstoul(const wchar_t*, wchar_t**, int);
unsigned long long wcstoull(const wchar_t*, wchar_t**, int);

size_t wcslen(const wchar_t*), wcsspn(const wchar_t*, const wchar_t*);
size_t wcscspn(const wchar_t*, const wchar_t*), wcsxfrm(wchar_t*, const wchar_t*, size_t);
size_t wcsftime(wchar_t*, size_t, const wchar_t*, const tm*);
int wcscmp(const wchar_t*, const wchar_t*), wcsncmp(const wchar_t*, const wchar_t*, size_t);
int wcscoll(const wchar_t*, const wchar_t*), wmemcmp(const wchar_t*, const wchar_t*, size_t);
wchar_t *wcscpy(wchar_t*, const wchar_t*), *wcsncpy(wchar_t*, const wchar_t*, size_t);
wchar_t *wcscat(wchar_t*, const wchar_t*), *wcsncat(wchar_t*, const wchar_t*, size_t);
wchar_t *wcschr(const wchar_t*, wchar_t), *wcsrchr(const wchar_t*, wchar_t);
wchar_t *wcspbrk(const wchar_t*, const wchar_t*), *wcsstr(const wchar_t*, const wchar_t*);
wchar_t *wcstok(wchar_t*, const wchar_t*, wchar_t**), *wmemchr(const wchar_t*, wchar_t, size_t);
wchar_t *wmemcpy(wchar_t*, const wchar_t*, size_t), *wmemmove(wchar_t*, const wchar_t*, size_t);
wchar_t* wmemset(wchar_t*, wchar_t, size_t);

wint_t btowc(int);
int wctob(wint_t), mbsinit(const mbstate_t*);
size_t mbrlen(const char*, size_t, mbstate_t*), wcrtomb(char*, wchar_t, mbstate_t*);
size_t mbrtowc(wchar_t*, const char*, size_t, mbstate_t*);
size_t mbsrtowcs(wchar_t*, const char**, size_t, mbstate_t*);
size_t wcsrtombs(char*, const wchar_t**, size_t, mbstate_t*);
}
