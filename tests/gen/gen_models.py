#!/usr/bin/env python3
"""Writes tests/golden/models/NAME: tiny models of random weights, and what transformers computes with them in f32.

    pip install torch transformers==5.23.0 safetensors && python3 tests/gen/gen_models.py [NAME ...]

A folder holds config.json with the hub's classic keys, weights in bf16, and golden/ with input_ids, logits and the residual after each layer
at every position, and greedy_ids, recomputed in full at each step. Weights are large enough that a rule that is broken shows.
"""
import copy, json, os, sys
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaMLP

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../golden/models')
N_GREEDY = 16
BASE = {'vocab_size': 96, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
        'max_position_embeddings': 512, 'rms_norm_eps': 1e-6, 'rope_theta': 10000.0, 'torch_dtype': 'bfloat16', 'bos_token_id': 1, 'eos_token_id': 2, 'pad_token_id': 0}
GEMMA = {'head_dim': 12, 'hidden_activation': 'gelu_pytorch_tanh', 'query_pre_attn_scalar': 20, 'eos_token_id': [1, 2], 'bos_token_id': 2}
LONG = {'short_factor': [1.0, 1.1, 1.3, 1.6], 'long_factor': [1.0, 2.0, 3.5, 6.0]}
EXPERTS = {'moe_intermediate_size': 16, 'num_experts_per_tok': 2}
MLA = {'kv_lora_rank': 16, 'qk_nope_head_dim': 8, 'qk_rope_head_dim': 8, 'v_head_dim': 12, 'num_key_value_heads': 4, 'first_k_dense_replace': 1, 'n_routed_experts': 8,
       'n_shared_experts': 2, 'norm_topk_prob': False, **EXPERTS}
YARN = {'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16}
# name: (model_type, what its config says besides, number of prompt ids)
MODELS = {
    'mistral': ('mistral', {'sliding_window': 10, 'head_dim': 6}, 28),
    'qwen2': ('qwen2', {'use_sliding_window': False, 'sliding_window': 8, 'max_window_layers': 1, 'tie_word_embeddings': True}, 24),
    'qwen2-window': ('qwen2', {'use_sliding_window': True, 'sliding_window': 9, 'max_window_layers': 1, 'num_key_value_heads': 1}, 28),
    'qwen3-yarn': ('qwen3', {'rope_scaling': YARN, 'head_dim': 12, 'tie_word_embeddings': True}, 40),
    'rope-yarn': ('llama', {'head_dim': 16, 'rope_theta': 100.0, 'rope_scaling': {**YARN, 'original_max_position_embeddings': 64, 'mscale': 1.0, 'mscale_all_dim': 0.5,
                                                                               'beta_fast': 8, 'truncate': False}}, 24),
    'rope-linear': ('llama', {'rope_scaling': {'type': 'linear', 'factor': 2.5}}, 24),
    'phi3': ('phi3', {'sliding_window': 12, 'partial_rotary_factor': 0.5}, 28),
    'phi3-short': ('phi3', {'rope_scaling': {'type': 'longrope', **LONG}, 'original_max_position_embeddings': 64}, 28),
    'phi3-long': ('phi3', {'rope_scaling': {'type': 'longrope', **LONG}, 'original_max_position_embeddings': 16}, 28),
    'gemma': ('gemma', {'head_dim': 12, 'hidden_act': 'gelu', 'num_key_value_heads': 1, 'tie_word_embeddings': False}, 24),
    'gemma2': ('gemma2', {**GEMMA, 'tie_word_embeddings': False, 'sliding_window': 9, 'attn_logit_softcapping': 4.0, 'final_logit_softcapping': 6.0}, 28),
    'gemma3': ('gemma3_text', {**GEMMA, 'num_hidden_layers': 3, 'sliding_window': 9, 'sliding_window_pattern': 3, 'rope_theta': 100000.0, 'rope_local_base_freq': 500.0,
                               'rope_scaling': {'rope_type': 'linear', 'factor': 4.0}}, 28),
    'gemma3-vision': ('gemma3', {}, 28),
    'qwen3_moe': ('qwen3_moe', {'num_hidden_layers': 3, 'head_dim': 12, 'num_experts': 6, 'decoder_sparse_step': 1, 'mlp_only_layers': [1], 'norm_topk_prob': True, **EXPERTS}, 28),
    'qwen3_moe-fused': ('qwen3_moe', {'num_hidden_layers': 3, 'head_dim': 12, 'num_experts': 4, 'decoder_sparse_step': 2, 'mlp_only_layers': [], 'norm_topk_prob': False, **EXPERTS}, 28),
    'deepseek': ('deepseek', {'first_k_dense_replace': 1, 'moe_layer_freq': 1, 'n_routed_experts': 8, 'n_shared_experts': 2, 'norm_topk_prob': False, 'scoring_func': 'softmax', **EXPERTS}, 28),
    'deepseek_v2': ('deepseek_v2', {**MLA, 'q_lora_rank': None, 'topk_method': 'greedy', 'n_group': 1, 'topk_group': 1, 'routed_scaling_factor': 1.0,
                                    'rope_scaling': {'type': 'yarn', 'factor': 40, 'original_max_position_embeddings': 64, 'beta_fast': 32, 'beta_slow': 1, 'mscale': 0.707, 'mscale_all_dim': 0.707}}, 28),
    'deepseek_v2-grouped': ('deepseek_v2', {**MLA, 'q_lora_rank': 20, 'topk_method': 'group_limited_greedy', 'n_group': 2, 'topk_group': 1, 'routed_scaling_factor': 8.0, 'n_shared_experts': 1,
                                            'rope_scaling': {'type': 'yarn', 'factor': 8, 'original_max_position_embeddings': 16, 'mscale': 1.0, 'mscale_all_dim': 0.5}}, 40),
    'deepseek_v3': ('deepseek_v3', {**MLA, 'q_lora_rank': 20, 'n_group': 4, 'topk_group': 2, 'num_experts_per_tok': 3, 'routed_scaling_factor': 2.5, 'n_shared_experts': 1, 'norm_topk_prob': True,
                                    'scoring_func': 'sigmoid', 'topk_method': 'noaux_tc', 'num_hidden_layers': 3,
                                    'rope_scaling': {'type': 'yarn', 'factor': 8, 'original_max_position_embeddings': 16, 'mscale': 1.0, 'mscale_all_dim': 1.0}}, 40),
    'jamba': ('jamba', {'num_hidden_layers': 4, 'hidden_size': 24, 'attn_layer_offset': 2, 'attn_layer_period': 4, 'expert_layer_offset': 1, 'expert_layer_period': 2, 'num_experts': 3, 'num_experts_per_tok': 2,
                        'mamba_conv_bias': True, 'mamba_proj_bias': False, 'mamba_d_conv': 4, 'mamba_d_state': 12, 'mamba_dt_rank': 6, 'mamba_expand': 2, 'use_mamba_kernels': False}, 40),
}
# As published configs of the multimodal kind: what both parts share outside, the text part's own inside, and little of it.
VISION = {'mm_tokens_per_image': 4, 'image_token_index': 95, 'boi_token_index': 94, 'eoi_token_index': 93, 'eos_token_id': [1, 2], 'bos_token_id': 2, 'torch_dtype': 'bfloat16',
          'text_config': {'vocab_size': 96, 'hidden_size': 32, 'intermediate_size': 48, 'num_hidden_layers': 3, 'num_attention_heads': 4, 'num_key_value_heads': 2, 'head_dim': 12,
                          'model_type': 'gemma3_text', 'query_pre_attn_scalar': 20, 'sliding_window': 9, 'sliding_window_pattern': 3, 'pad_token_id': 0,
                          'rope_scaling': {'rope_type': 'linear', 'factor': 8.0}},
          'vision_config': {'model_type': 'siglip_vision_model', 'hidden_size': 16, 'intermediate_size': 24, 'num_hidden_layers': 1, 'num_attention_heads': 2, 'image_size': 28,
                            'patch_size': 14}}
ARCH = {'gemma': 'GemmaForCausalLM', 'mistral': 'MistralForCausalLM', 'qwen2': 'Qwen2ForCausalLM', 'qwen3': 'Qwen3ForCausalLM', 'llama': 'LlamaForCausalLM', 'phi3': 'Phi3ForCausalLM',
        'gemma2': 'Gemma2ForCausalLM', 'gemma3_text': 'Gemma3ForCausalLM', 'gemma3': 'Gemma3ForConditionalGeneration', 'qwen3_moe': 'Qwen3MoeForCausalLM',
        'deepseek': 'DeepseekForCausalLM', 'deepseek_v2': 'DeepseekV2ForCausalLM', 'deepseek_v3': 'DeepseekV3ForCausalLM', 'jamba': 'JambaForCausalLM'}


class DeepseekMoE(torch.nn.Module):
    """What modeling_deepseek.py of deepseek-ai/deepseek-moe-16b computes; transformers has no such class."""

    def __init__(self, c):
        super().__init__()
        self.top_k, self.renormalise = c['num_experts_per_tok'], c['norm_topk_prob']
        mlp = lambda n: LlamaMLP(LlamaConfig(hidden_size=c['hidden_size'], intermediate_size=n, hidden_act='silu'))
        self.gate = torch.nn.Linear(c['hidden_size'], c['n_routed_experts'], bias=False)
        self.experts = torch.nn.ModuleList(mlp(c['moe_intermediate_size']) for _ in range(c['n_routed_experts']))
        self.shared_experts = mlp(c['moe_intermediate_size'] * c['n_shared_experts'])

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k)
        if self.renormalise: weights = weights / weights.sum(-1, keepdim=True)
        every = torch.stack([e(x) for e in self.experts], -2) # all of them; those that were not chosen are left out of the sum
        return (weights[..., None] * every.gather(-2, chosen[..., None].expand(*chosen.shape, x.shape[-1]))).sum(-2) + self.shared_experts(x)


def build(kind, config):
    if kind != 'deepseek':
        auto = AutoModelForImageTextToText if kind == 'gemma3' else AutoModelForCausalLM
        return auto.from_config(AutoConfig.for_model(kind, **config), attn_implementation='eager', dtype=torch.float32)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model('llama', **config), attn_implementation='eager', dtype=torch.float32)
    for layer in list(model.model.layers)[config['first_k_dense_replace']:]: layer.mlp = DeepseekMoE(config)
    return model


def one_by_one(weights):
    """Experts as they are published: a matrix each, where transformers 5 holds those of a layer in one tensor."""
    out = {}
    for k, v in weights.items():
        if not k.endswith(('experts.gate_up_proj', 'experts.down_proj')):
            out[k] = v
            continue
        folder = k.rsplit('.', 1)[0]
        for e in range(v.shape[0]):
            parts = {'gate_proj': v[e, :v.shape[1] // 2], 'up_proj': v[e, v.shape[1] // 2:]} if k.endswith('gate_up_proj') else {'down_proj': v[e]}
            for name, part in parts.items(): out[f'{folder}.{e}.{name}.weight'] = part.contiguous()
    return out


def randomize(model, gen, zero_norms):
    for name, p in model.named_parameters():
        x = torch.randn(p.shape, generator=gen)
        if 'norm' in name: x = (0.0 if zero_norms else 1.0) + 0.3 * x
        elif name.endswith('bias'): x = 0.5 * x
        elif name.endswith('A_log'): x = 0.7 * x
        elif 'conv1d' in name: x = 0.6 * x
        elif 'embed' in name: x = (0.2 if zero_norms else 1.0) * x # gemma's are scaled up
        elif 'lm_head' in name: x = 1.5 * x / p.shape[-1] ** 0.5
        else: x = 1.8 * x / p.shape[-1] ** 0.5
        p.data.copy_(x.to(torch.bfloat16))
    for name, b in model.named_buffers():
        if name.endswith('e_score_correction_bias'): b.copy_((0.4 * torch.randn(b.shape, generator=gen)).to(torch.bfloat16))


@torch.no_grad()
def make(name):
    kind, extra, n = MODELS[name]
    config = {'architectures': [ARCH[kind]], 'model_type': kind, **(VISION if kind == 'gemma3' else BASE), **extra}
    if not kind.startswith('gemma'): config['hidden_act'] = 'silu'
    given = copy.deepcopy(config)
    model = build(given.pop('model_type'), given).eval()
    gen = torch.Generator().manual_seed(sum(name.encode()))
    randomize(model, gen, kind.startswith('gemma'))
    model.tie_weights()
    text = model.model.language_model if kind == 'gemma3' else model.model
    ids = torch.randint(3, config.get('vocab_size', 93), (1, n), generator=gen) # no image tokens
    hidden = {}
    for i, layer in enumerate(text.layers):
        layer.register_forward_hook(lambda m, a, out, i=i: hidden.__setitem__(f'hidden_after_layer_{i}', (out[0] if isinstance(out, tuple) else out).reshape(n, -1).clone()))
    logits = model(ids, use_cache=False).logits[0]
    golden = {'input_ids': ids[0].to(torch.int32), 'logits': logits.float().contiguous(), **dict(hidden)}
    for layer in text.layers: layer._forward_hooks.clear()
    greedy, gap = ids, 1e9
    for _ in range(N_GREEDY):
        top = model(greedy, use_cache=False).logits[0, -1].topk(2)
        gap = min(gap, float(top.values[0] - top.values[1]))
        greedy = torch.cat([greedy, top.indices[:1].reshape(1, 1)], 1)
    golden['greedy_ids'] = greedy[0, n:].to(torch.int32)
    folder = os.path.join(OUT, name)
    os.makedirs(os.path.join(folder, 'golden'), exist_ok=True)
    tied = config.get('tie_word_embeddings', kind.startswith('gemma'))
    if kind == 'gemma3': # names as they are published
        model.to(torch.bfloat16).save_pretrained(folder)
        os.remove(os.path.join(folder, 'generation_config.json'))
    weights = {k: v.to(torch.bfloat16).contiguous() for k, v in model.state_dict().items() if not (tied and k == 'lm_head.weight')}
    if not name.endswith('-fused'): weights = one_by_one(weights)
    if kind != 'gemma3': save_file(weights, os.path.join(folder, 'model.safetensors'), metadata={'format': 'pt'})
    save_file(golden, os.path.join(folder, 'golden', 'model.safetensors'))
    with open(os.path.join(folder, 'golden', 'config.json'), 'w') as f: f.write('{}\n')
    with open(os.path.join(folder, 'config.json'), 'w') as f: f.write(json.dumps(config, indent=1) + '\n')
    print(f'{name}: logits up to {float(logits.abs().max()):.1f}, std {float(logits.std()):.2f}, smallest greedy gap {gap:.4f}')


for one in sys.argv[1:] or MODELS: make(one)
