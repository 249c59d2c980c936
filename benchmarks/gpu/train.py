"""Train a model on made-up data, as anybody would, or use it: ``train.py NAME [--inference]``."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

STEPS = 100_000


class Bottleneck(nn.Module):
    def __init__(self, n_in, width, stride=1):
        super().__init__()
        n_out = 4 * width
        self.conv1 = nn.Conv2d(n_in, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or n_in != n_out:
            conv = nn.Conv2d(n_in, n_out, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(n_out))

    def forward(self, x):
        same = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.relu(self.bn2(self.conv2(x)))
        x = self.bn3(self.conv3(x))
        x += same
        return self.relu(x)


class ResNet(nn.Module):
    def __init__(self, blocks=(3, 4, 6, 3), width=64, classes=1000):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        n_in, layers = width, []
        for stage, count in enumerate(blocks):
            own = width << stage
            layer = []
            for block in range(count):
                layer.append(Bottleneck(n_in, own, 2 if stage and not block else 1))
                n_in = 4 * own
            layers.append(nn.Sequential(*layer))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(n_in, classes)

    def forward(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(self.avgpool(x).flatten(1))


class LanguageModel(nn.Module):
    def __init__(self, words, width, layers):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, layers, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, x):
        hidden, _ = self.lstm(self.embedding(x))
        return self.head(hidden)


class Parts(nn.Module):
    """Layers of given widths, each of which passes 1,024 values on."""

    def __init__(self, *widths):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(1024, width) for width in widths)

    def forward(self, x):
        for part in self.parts:
            x = part(x)[:, :1024]
        return x


def images(batch, pixels, classes):
    """Return 8 batches of images and classes."""
    n = 8 * batch
    return TensorDataset(torch.randn(n, 3, pixels, pixels), torch.randint(0, classes, (n,)))


def texts(batch, length, words):
    """Return 8 batches of texts, each its own label."""
    x = torch.randint(0, words, (8 * batch, length))
    return TensorDataset(x, x)


def resnet50(small):
    batch, pixels = (4, 64) if small else (64, 224)
    model = ResNet((1, 1, 1, 1), 16) if small else ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    return model, optimizer, images(batch, pixels, 1000), batch, None, classify


def gpt2(small):
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=512) if small else GPT2Config()
    model = GPT2LMHeadModel(config)
    batch, length = (2, 32) if small else (8, 1024)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    return (
        model,
        optimizer,
        texts(batch, length, config.vocab_size),
        batch,
        torch.bfloat16,
        own_loss,
    )


def bert(small):
    from transformers import BertConfig, BertForMaskedLM

    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    tiny |= {"intermediate_size": 128, "vocab_size": 512}
    config = BertConfig(**tiny) if small else BertConfig()
    model = BertForMaskedLM(config)
    batch, length = (2, 32) if small else (32, 256)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, texts(batch, length, config.vocab_size), batch, None, own_loss


def language(name, batch, length, **sizes):
    """Return a language model in bfloat16, of the sizes that its configuration names."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**sizes, use_cache=False)
    model = getattr(transformers, f"{name}ForCausalLM")(config).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, texts(batch, length, config.vocab_size), batch, None, own_loss


def llama(small):
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 16}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000}
    if small:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    batch, length = (2, 32) if small else (4, 2048)
    return language("Llama", batch, length, **sizes)


def llama_7b(small):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2} if small else {}
    return language("Llama", 1, 32 if small else 2048, **sizes)


def opt(small):
    sizes = {"hidden_size": 2048, "ffn_dim": 8192, "num_hidden_layers": 24}
    if small:
        sizes = {"hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2}
    width = sizes["hidden_size"]
    heads = {"num_attention_heads": width // 64, "word_embed_proj_dim": width}
    return language("OPT", 4, 32 if small else 2048, **sizes, **heads)


def mixtral(small):
    sizes = {"hidden_size": 1024, "intermediate_size": 3584, "num_hidden_layers": 16}
    if small:
        sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    return language("Mixtral", 2, 32 if small else 1024, **sizes, **heads)


def qwen(small):
    sizes = {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28}
    if small:
        sizes = {"hidden_size": 96, "intermediate_size": 128, "num_hidden_layers": 2}
    more = {"num_attention_heads": 12, "num_key_value_heads": 2, "tie_word_embeddings": True}
    return language("Qwen2", 4, 32 if small else 2048, **sizes, **more)


def whisper(small):
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    width, layers = (64, 1) if small else (768, 12)
    config = WhisperConfig(
        d_model=width, encoder_layers=layers, decoder_layers=layers, encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width, encoder_attention_heads=12 if width % 12 == 0 else 4,
        decoder_attention_heads=12 if width % 12 == 0 else 4, use_cache=False,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    batch = 2 if small else 8
    words = torch.randint(0, config.vocab_size, (8 * batch, 8 if small else 128))
    data = TensorDataset(torch.randn(8 * batch, 80, 3000), words)
    return model, optimizer, data, batch, torch.bfloat16, of_sound


def vit(small):
    from transformers import ViTConfig, ViTForImageClassification

    tiny = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}
    tiny |= {"intermediate_size": 128, "image_size": 64}
    config = ViTConfig(**tiny if small else {}, num_labels=1000)
    model = ViTForImageClassification(config)
    torch.set_float32_matmul_precision("high")
    batch = 2 if small else 64
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=torch.cuda.is_available())
    return model, optimizer, images(batch, config.image_size, 1000), batch, None, classify


def t5(small):
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 768, "d_ff": 3072, "d_kv": 64, "num_layers": 12, "num_heads": 12}
    if small:
        sizes = {"d_model": 64, "d_ff": 128, "d_kv": 16, "num_layers": 2, "num_heads": 4}
    words = 512 if small else 32128
    config = T5Config(**sizes, vocab_size=words, decoder_start_token_id=0, use_cache=False)
    model = T5ForConditionalGeneration(config)
    batch, length = (2, 32) if small else (16, 512)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, texts(batch, length, words), batch, torch.bfloat16, own_loss


def convnext(small):
    from transformers import ConvNextConfig, ConvNextForImageClassification

    tiny = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]}
    config = ConvNextConfig(**tiny if small else {}, num_labels=1000)
    model = ConvNextForImageClassification(config)
    batch, pixels = (2, 64) if small else (64, 224)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    return model, optimizer, images(batch, pixels, 1000), batch, torch.bfloat16, classify


def lstm(small):
    words, width, batch, length = (500, 64, 4, 16) if small else (10_000, 1024, 64, 128)
    model = LanguageModel(words, width, 2)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    return model, optimizer, texts(batch, length, words), batch, None, next_word


def parts(*widths):
    model, data = Parts(*widths), TensorDataset(torch.randn(64, 1024), torch.zeros(64).long())
    return model, torch.optim.SGD(model.parameters(), 0.1), data, 8, None, classify


def classify(model, x, y):
    out = model(x)
    return cross_entropy(getattr(out, "logits", out), y)


def next_word(model, x, y):
    return cross_entropy(model(x).flatten(0, 1), y.flatten())


def of_sound(model, x, y):
    return model(input_features=x, labels=y).loss


def own_loss(model, x, y):
    return model(input_ids=x, labels=y).loss


MODELS = {
    "resnet50": resnet50, "gpt2": gpt2, "bert": bert, "llama-1b": llama, "vit": vit, "lstm": lstm,
    "t5": t5, "convnext": convnext, "whisper": whisper, "opt-1.3b": opt, "mixtral": mixtral,
    "qwen-1.5b": qwen, "llama-7b": llama_7b,
    "one-large-part": lambda _: parts(*[100_000] * 6, 400_000),
    "three-parts": lambda _: parts(50_000, 400_000, 350_000),
}  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--inference", action="store_true")
    given = parser.parse_args()
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with device:
        model, optimizer, data, batch, low, loss_of = MODELS[given.model](given.small)
    model.to(device).train(not given.inference)
    torch.set_grad_enabled(not given.inference)
    loader = DataLoader(data, batch_size=batch)
    for _ in range(STEPS):
        for x, y in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, low, enabled=low is not None):
                loss = loss_of(model, x.to(device), y.to(device))
            if not given.inference:
                loss.backward()
                optimizer.step()


if __name__ == "__main__":
    main()
