"""Published models: conversion between Hugging Face configs and architectures, and look-up by typed names."""
