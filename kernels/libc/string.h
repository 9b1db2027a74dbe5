// See README.md.
#pragma once

#include <stddef.h>

extern "C" {
void *memcpy(void*, const void*, size_t), *memmove(void*, const void*, size_t);
void *memset(void*, int, size_t), *memchr(const void*, int, size_t);
int memcmp(const void*, const void*, size_t);

size_t strlen(const char*), strspn(const char*, const char*), strcspn(const char*, const char*);
size_t strxfrm(char*, const char*, size_t);
char *strcpy(char*, const char*), *strncpy(char*, const char*, size_t);
char *strcat(char*, const char*), *strncat(char*, const char*, size_t);
char *strchr(const char*, int), *strrchr(const char*, int), *strstr(const char*, const char*);
char *strpbrk(const char*, const char*), *strtok(char*, const char*), *strerror(int);
int strcmp(const char*, const char*), strncmp(const char*, const char*, size_t);
int strcoll(const char*, const char*);
}
